// How far two tensors are apart. Equality first; the numbers in one further pass, only where bits differ.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

namespace lockstep {

/// From best to worst; a run takes the worst of its points.
enum class Verdict { identical, agrees, rounding, deviates, dtype, shape, missing, non_finite };
const char* name(Verdict verdict);
/// The verdict of that name; of any other text non_finite, which nothing accepts.
Verdict verdict_named(const std::string& name);

/// An element agrees if |candidate - reference| <= atol + rtol |reference|.
struct Gate {
  double atol = 1e-5;
  double rtol = 0;
};

struct Metrics {
  Verdict verdict = Verdict::identical;
  int64_t elements = 0;
  int64_t bad_elements = 0;  // over the gate
  double max_ulp = 0;        // in ulps of the tensors' own dtype; +0 against -0 is 0
  double max_abs = 0;        // max |candidate - reference|
  double rel_l2 = 0;         // |candidate - reference|_2 / |reference|_2
  double cosine = 1;
  std::vector<int64_t> worst_index;   // of max_abs; of the first NaN where the verdict is non_finite; else empty
  bool reference_non_finite = false;  // the reference holds a NaN too
};

/// Compares reference and candidate of any dtype, contiguous or not; both on the CPU. NaN on either side is
/// non_finite, equal infinities are equal. Shapes never broadcast, dtypes never promote.
Metrics compare(const at::Tensor& reference, const at::Tensor& candidate, const Gate& gate);

/// Byte for byte; also true for equal NaN patterns. Shapes and dtypes must agree.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

/// Flat index of the first element whose bits differ, or -1. Shapes and dtypes must agree.
int64_t first_difference(const at::Tensor& a, const at::Tensor& b);

/// A 64-bit fingerprint of shape, dtype and bytes: equal tensors have one; two that have one are very likely equal.
uint64_t fingerprint(const at::Tensor& x);

/// What the next-token distributions say: mean KL divergence (nats, float64) of candidate from reference over the
/// counted positions, and the share of them whose most probable token is the same. logits [B, T, V].
struct LogitsAgreement {
  double kl = 0;
  double top1_agreement = 1;
};
/// mask [B, past + T] of 0 and 1 says which positions count; undefined: all.
LogitsAgreement compare_logits(const at::Tensor& reference, const at::Tensor& candidate, const at::Tensor& mask);

}  // namespace lockstep
