// What `--fast` computes with. A step reads every weight once, and that is most of its time; so the weights that the
// file holds in bfloat16 are read as they are stored: half the bytes of float32. They are the same numbers, but what is
// made of them is rounded and added up in another order: other bits, which the check must call rounding.
#pragma once

#include <map>

#include "models/mirror.h"
#include "nn/arithmetic.h"

namespace lockstep {

/// weight [N, K] bfloat16 times row [K] float32 -> [N] float32, added up in float32.
at::Tensor multiply_stored(const at::Tensor& weight, const at::Tensor& row);

/// Hugging Face's arithmetic, but for a linear map of a single row.
class FastArithmetic final : public Arithmetic {
 public:
  /// For runs of `mirror`, bound in float32 or bfloat16, which must outlive it. Raises InputError for another dtype,
  /// and if the file holds no linear map's weight in bfloat16.
  explicit FastArithmetic(const Mirror& mirror);

  at::Tensor linear(const Module& at, const at::Tensor& x, const at::Tensor& weight,
                    const at::Tensor* bias) const override;

 private:
  std::map<const at::Tensor*, at::Tensor> stored_;  // by the mirror's parameter
};

}  // namespace lockstep
