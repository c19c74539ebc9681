#include "nn/attention.h"

namespace lockstep {

namespace {

/// [B, G, S, K] -> [B, G * groups, S, K], each head repeated `groups` times in a row.
at::Tensor repeat_kv(const at::Tensor& x, int64_t groups) {
  if (groups == 1) return x;
  const auto B = x.size(0), G = x.size(1), S = x.size(2), K = x.size(3);
  return x.unsqueeze(2).expand({B, G, groups, S, K}).reshape({B, G * groups, S, K});
}

at::Tensor eager(const Run& run, const at::Tensor& query, const at::Tensor& key_in, const at::Tensor& value_in,
                 const at::Tensor& mask, double scaling) {
  const auto groups = query.size(1) / key_in.size(1);
  const auto key = repeat_kv(key_in, groups), value = repeat_kv(value_in, groups);
  auto weights = at::matmul(query, key.transpose(2, 3)) * scaling;
  if (mask.defined()) weights = weights + mask;
  weights = at::softmax(weights, -1, run.arithmetic.up).to(query.scalar_type());
  return at::matmul(weights, value).transpose(1, 2).contiguous();
}

at::Tensor sdpa(const Run& run, at::Tensor query, at::Tensor key, at::Tensor value, const at::Tensor& mask,
                double scaling) {
  const auto B = query.size(0), T = query.size(2);
  const auto groups = query.size(1) / key.size(1);
  // The release's own rule for grouped heads: SDPA's, packed queries, or repeated keys and values.
  const bool any_groups = run.variant.gqa_any_head_dim || groups > 1;
  bool enable_gqa = false;
  if (any_groups && !mask.defined() && (run.variant.gqa_any_head_dim || key.size(-1) <= 256)) {
    enable_gqa = true;
  } else if (groups > 1 && run.variant.packs_single_query && T == 1) {
    query = query.reshape({B, query.size(1) / groups, groups, query.size(-1)});
  } else {
    key = repeat_kv(key, groups), value = repeat_kv(value, groups);
  }
  const bool is_causal = T > 1 && !mask.defined();
  std::optional<at::Tensor> bias;
  if (mask.defined()) bias = mask;
  auto out = at::scaled_dot_product_attention(query, key, value, bias, 0.0, is_causal, scaling, enable_gqa);
  out = out.reshape({B, -1, T, value.size(-1)});
  return out.transpose(1, 2).contiguous();
}

}  // namespace

at::Tensor attention(const Run& run, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const at::Tensor& mask, double scaling) {
  return run.attn == Attn::eager ? eager(run, query, key, value, mask, scaling)
                                 : sdpa(run, query, key, value, mask, scaling);
}

}  // namespace lockstep
