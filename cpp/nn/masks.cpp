#include "nn/masks.h"

#include <limits>

namespace lockstep {

using at::indexing::None;
using at::indexing::Slice;

namespace {

/// Sequence number of each token, [B, T], or undefined if every row is one sequence.
at::Tensor packed_sequences(const at::Tensor& positions) {
  const auto before = positions.index({Slice(), Slice(None, 1)}) - 1;
  const auto step = at::diff(positions, 1, -1, before);
  const auto sequence = (step != 1).cumsum(-1);
  const bool single = (sequence.index({Slice(), -1}) == 0).all().item<bool>();
  return single ? at::Tensor() : sequence;
}

double lowest(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return static_cast<float>(std::numeric_limits<c10::Half>::lowest());
    case at::kBFloat16:
      return static_cast<float>(std::numeric_limits<c10::BFloat16>::lowest());
    case at::kDouble:
      return std::numeric_limits<double>::lowest();
    default:
      return std::numeric_limits<float>::lowest();
  }
}

}  // namespace

at::Tensor causal_mask(const Run& run, int64_t batch, int64_t tokens, int64_t past, const at::Tensor& padding,
                       const at::Tensor& text_positions, at::ScalarType dtype) {
  const int64_t keys = past + tokens;
  at::Tensor sequence;
  if (text_positions.defined() && !padding.defined() && !run.cache) {
    sequence = packed_sequences(text_positions.expand({batch, tokens}));
  }
  if (run.attn == Attn::sdpa && !sequence.defined()) {
    const bool unpadded = !padding.defined() || padding.to(at::kBool).all().item<bool>();
    if (unpadded && (tokens == 1 || past == 0)) return {};  // SDPA's own is_causal says it
  }
  const auto q_index = at::arange(tokens) + past, k_index = at::arange(keys);
  auto mask = (k_index.view({1, 1, 1, keys}) <= q_index.view({1, 1, tokens, 1})).expand({batch, 1, tokens, keys});
  if (sequence.defined()) {
    mask = mask & (sequence.view({batch, 1, tokens, 1}) == sequence.view({batch, 1, 1, tokens}));
  }
  if (padding.defined()) mask = mask & padding.to(at::kBool).view({batch, 1, 1, keys});
  if (run.attn == Attn::sdpa) return mask;
  return at::where(mask, at::zeros({}, dtype), at::scalar_tensor(lowest(dtype), dtype));
}

at::Tensor recurrent_mask(const Run& run, int64_t tokens, int64_t past, const at::Tensor& padding) {
  if (!padding.defined() || (padding == 1).all().item<bool>()) return {};
  if (run.variant.mask_batches_only) {
    const bool applies = padding.size(0) > 1 && padding.size(1) > 1 && past == 0;
    return applies ? padding : at::Tensor();
  }
  if (tokens == 1) return {};
  return padding.index({Slice(), Slice(-tokens, None)}).contiguous();
}

}  // namespace lockstep
