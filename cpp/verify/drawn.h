// Index order with its roundings drawn at random (Monte Carlo arithmetic: Parker 1997): another right engine each time.
#pragma once

#include <cstdint>

#include "nn/arithmetic.h"

namespace lockstep {

/// Results in half precision are rounded once more, up or down by the generator's numbers; float32 ones are as they
/// are.
class Drawn final : public Arithmetic {
 public:
  explicit Drawn(uint64_t seed);

  at::Tensor linear(const Module& at, const at::Tensor& x, const at::Tensor& weight,
                    const at::Tensor* bias) const override;
  at::Tensor l2norm(const Module& at, const at::Tensor& x) const override;
  at::Tensor silu(const Module& at, const at::Tensor& x) const override;
  at::Tensor conv(const Module& at, const at::Tensor& context, const at::Tensor& weight,
                  int64_t padding) const override;
  at::Tensor beta(const Module& at, const at::Tensor& b) const override;
  at::Tensor rotate(const Module& at, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                    bool partial) const override;

 private:
  at::Tensor drawn(const at::Tensor& x) const;
  mutable at::Generator generator_;
};

}  // namespace lockstep
