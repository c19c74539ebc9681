#include "verify/remarks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "nn/gated_delta_rule.h"
#include "verify/rows.h"

namespace lockstep {

using nlohmann::json;

namespace {

constexpr double kSame = 1e-3;  // relative L2 below which two tensors have one shape

double apart(const at::Tensor& a, const at::Tensor& b) {
  const auto size = b.norm().item<double>();
  return size > 0 ? (a - b).norm().item<double>() / size : 1;
}

}  // namespace

json remark(const Sublayer& s, const SideResult& side, const Trace& trace, const Judged& worst) {
  if (worst.verdict != Verdict::deviates) return nullptr;
  const Evaluation* e = nullptr;
  for (const auto& candidate : side.evaluations) {
    if (candidate->forward->name == worst.forward) e = candidate.get();
  }
  if (!e) return nullptr;
  const auto t = (worst.inner ? e->forced_truth : e->truth).at.at(worst.point);
  const auto c = inner_as(trace.tensor(worst.forward, worst.point), t).to(at::kDouble);
  const auto size = t.norm().item<double>();
  if (c.norm().item<double>() == 0) return "the candidate's is exactly zero";
  // A constant factor.
  const double factor = size > 0 ? (c * t).sum().item<double>() / (size * size) : 0;
  if (std::abs(factor - 1) > 10 * kSame && std::abs(factor) > kSame && apart(c, factor * t) < kSame)
    return fmt::format("the truth times {:.4g}", factor);
  if (c.dim() >= 2 && c.size(-1) == c.size(-2) && apart(c, t.transpose(-1, -2)) < kSame)
    return "the truth with its last two dims transposed";
  // Rows in another order: each of the candidate's is some row of the truth.
  const auto rows = rows_of(worst.point, c, *e->forward, e->layout.variant).values;
  const auto truths = rows_of(worst.point, t, *e->forward, e->layout.variant).values;
  if (rows.size(0) > 1 && rows.size(0) <= 4096 && rows.sizes() == truths.sizes()) {
    const auto nearest = at::cdist(rows, truths);
    const auto [distance, which] = nearest.min(1);
    const auto norms = truths.norm(2, {1}).index({which}).clamp_min(1e-300);
    const auto identity = at::arange(rows.size(0));
    const bool permuted = std::get<0>(at::sort(which)).equal(identity) && !which.equal(identity);
    if (permuted && (distance / norms).max().item<double>() < kSame) return "the truth's rows in another order";
  }
  // Beyond the rotary part.
  const auto at = worst.point.find('@');
  const auto value = at == std::string::npos ? "" : worst.point.substr(at + 1);
  if ((value == "q_rope" || value == "k_rope") && c.dim() == 4) {
    const auto cos = trace.promised(worst.forward, "model.rotary_emb@cos")
                         ? trace.tensor(worst.forward, "model.rotary_emb@cos")
                         : at::Tensor();
    if (cos.defined() && cos.size(-1) < c.size(-1) &&
        apart(c.slice(-1, cos.size(-1)), t.slice(-1, cos.size(-1))) > kSame)
      return fmt::format("dims {} and on, beyond the rotary part, are changed", cos.size(-1));
  }
  // Nothing up to one chunk.
  if (s.kind == Kind::linear_attn) {
    bool short_good = false, short_bad = false, long_bad = false;
    for (const auto& j : side.judged) {
      const auto tokens = trace.forward(j.forward).ids.size(1);
      const bool fresh = trace.forward(j.forward).past.empty();
      if (tokens <= kDeltaRuleChunk && fresh) (j.verdict > Verdict::rounding ? short_bad : short_good) = true;
      if (tokens > kDeltaRuleChunk) long_bad |= j.verdict > Verdict::rounding;
    }
    if (short_good && !short_bad && long_bad)
      return fmt::format("nothing up to T = {}: what one chunk hands to the next is wrong", kDeltaRuleChunk);
  }
  return nullptr;
}

}  // namespace lockstep
