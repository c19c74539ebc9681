#include "verify/rows.h"

#include <ATen/TensorIndexing.h>

#include <limits>

namespace lockstep {

using at::indexing::None;
using at::indexing::Slice;

Rows rows_of(const std::string& point, const at::Tensor& value, const TraceForward& forward,
             const std::string& variant) {
  const auto B = forward.ids.size(0), T = forward.ids.size(1);
  const auto at = point.find('@');
  const auto name = at == std::string::npos ? "" : point.substr(at + 1);
  const auto mask = forward.mask.defined() ? forward.mask.to(at::kBool) : at::Tensor();
  auto all = [](int64_t rows) { return at::ones({rows}, at::kBool); };
  auto by_token = [&](const at::Tensor& x) {  // [B, T, ...]
    const auto attended = mask.defined() ? mask.index({Slice(), Slice(-T, None)}).reshape({-1}) : all(B * T);
    return Rows{x.reshape({B * T, -1}), attended};
  };
  const auto dim = value.dim();
  if (name == "inv_freq") return {value.reshape({1, -1}), all(1)};
  if (name == "recurrent_state" && dim == 4)
    return {value.reshape({value.size(0) * value.size(1), -1}), all(value.size(0) * value.size(1))};
  if (name == "conv_state" && dim == 3)
    return {value.reshape({value.size(0) * value.size(1), -1}), all(value.size(0) * value.size(1))};
  if ((name == "key_cache" || name == "value_cache") && dim == 4 && value.size(0) == B) {
    auto attended = all(B * value.size(1) * value.size(2));
    if (mask.defined() && mask.size(1) == value.size(2))
      attended = mask.unsqueeze(1).expand({B, value.size(1), value.size(2)}).reshape({-1});
    return {value.reshape({-1, value.size(3)}), attended};
  }
  auto x = value;
  if (name == "conv" && dim == 3) x = value.transpose(1, 2);
  if ((name == "q_rope" || name == "k_rope") && dim == 4) x = value.transpose(1, 2);
  if ((name == "q_l2" || name == "k_l2") && dim == 4 && variant != "5.10") x = value.transpose(1, 2);
  if (x.dim() >= 2 && x.size(0) == B && x.size(1) == T) return by_token(x);
  if (x.dim() == 2 && x.size(0) % (B * T) == 0) return by_token(x);  // heads folded into the rows
  if (x.dim() >= 2 && x.size(0) == 1 && x.size(1) == T && B > 1) {   // one table for the whole batch (cos, sin)
    const auto once = by_token(x.expand([&] {
      auto sizes = x.sizes().vec();
      sizes[0] = B;
      return sizes;
    }()));
    return once;
  }
  return {value.reshape({1, -1}), all(1)};
}

at::Tensor inner_as(const at::Tensor& value, const at::Tensor& expected) {
  if (value.sizes() == expected.sizes()) return value;
  return value.numel() == expected.numel() ? value.reshape(expected.sizes()) : at::Tensor();
}

at::Tensor row_errors(const at::Tensor& candidate, const at::Tensor& truth) {
  const auto c = candidate.to(at::kDouble), t = truth.to(at::kDouble);
  const auto away = (c - t).square().sum(1).sqrt(), size = t.square().sum(1).sqrt();
  const auto infinite = at::full({}, std::numeric_limits<double>::infinity(), at::kDouble);
  const auto zero = at::zeros({}, at::kDouble);
  return at::where(size > 0, away / size, at::where(away == 0, zero, at::where(away.isnan(), away, infinite)));
}

}  // namespace lockstep
