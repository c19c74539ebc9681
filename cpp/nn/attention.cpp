#include "nn/attention.h"

namespace lockstep {

namespace {

/// Each key/value head repeated for its group of queries. mirrors repeat_kv
at::Tensor repeat_kv(const Run& run, const Module& at, const at::Tensor& x, int64_t groups) {
  return run.arithmetic.repeat_heads(at, x, groups, 1);
}

at::Tensor eager(const Run& run, const Module& at, const at::Tensor& query, const at::Tensor& key_in,
                 const at::Tensor& value_in, const at::Tensor& mask, double scaling) {
  const auto groups = query.size(1) / key_in.size(1);
  const auto key = repeat_kv(run, at, key_in, groups), value = repeat_kv(run, at, value_in, groups);
  auto weights = run.arithmetic.matmul(query, key.transpose(2, 3)) * scaling;
  if (mask.defined()) weights = weights + mask;
  weights = run.arithmetic.softmax(weights).to(query.scalar_type());
  return run.arithmetic.matmul(weights, value).transpose(1, 2).contiguous();
}

/// The formula itself: softmax over the visible keys; a query that sees none gives zero, as SDPA's does.
at::Tensor plain(const Run& run, const Module& at, const at::Tensor& query, const at::Tensor& key_in,
                 const at::Tensor& value_in, const at::Tensor& mask, double scaling) {
  const auto groups = query.size(1) / key_in.size(1), T = query.size(2), keys = key_in.size(2);
  const auto key = repeat_kv(run, at, key_in, groups), value = repeat_kv(run, at, value_in, groups);
  auto visible = at::ones({T, keys}, at::kBool).tril(keys - T).view({1, 1, T, keys});
  if (mask.defined()) visible = mask.scalar_type() == at::kBool ? mask : mask == 0;
  visible = run.arithmetic.visible(at, visible);
  const auto scores = run.upcast(run.arithmetic.matmul(query, key.transpose(2, 3))) * scaling;
  const auto weights = run.arithmetic.softmax(scores.masked_fill(~visible, -1e30)).masked_fill(~visible, 0.0);
  return run.arithmetic.matmul(weights.to(query.scalar_type()), value).transpose(1, 2).contiguous();
}

at::Tensor sdpa(const Run& run, const Module& at, at::Tensor query, at::Tensor key, at::Tensor value,
                const at::Tensor& mask, double scaling) {
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
    key = repeat_kv(run, at, key, groups), value = repeat_kv(run, at, value, groups);
  }
  const bool is_causal = T > 1 && !mask.defined();
  std::optional<at::Tensor> bias;
  if (mask.defined()) bias = mask;
  auto out = at::scaled_dot_product_attention(query, key, value, bias, 0.0, is_causal, scaling, enable_gqa);
  out = out.reshape({B, -1, T, value.size(-1)});
  return out.transpose(1, 2).contiguous();
}

}  // namespace

at::Tensor attention(const Run& run, const Module& at, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const at::Tensor& mask, double config_scaling) {
  const double scaling = run.arithmetic.number(at, "scale", config_scaling);
  if (run.arithmetic.order != Order::hf || run.arithmetic.changes_visible(at))
    return plain(run, at, query, key, value, mask, scaling);
  return run.attn == Attn::eager ? eager(run, at, query, key, value, mask, scaling)
                                 : sdpa(run, at, query, key, value, mask, scaling);
}

}  // namespace lockstep
