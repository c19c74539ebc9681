// What a mixer does inside: gates and attention of a full-attention layer, decay, beta and state of a Gated DeltaNet.
#include <cmath>

#include "inspect/inspection.h"
#include "inspect/numbers.h"

namespace lockstep::inspect {

nlohmann::json full_attention(const at::Tensor& gate, const at::Tensor& q_rope, const at::Tensor& k_rope) {
  const auto query = q_rope[0].to(at::kDouble), key = k_rope[0].to(at::kDouble);  // [H, T, K], [G, T, K]
  const auto H = query.size(0), T = query.size(1), K = query.size(2), group = H / key.size(0);
  // The second half of the queries: the first ones have little to choose from.
  const auto from = T / 2;
  const auto visible = at::ones({T, T}, at::kBool).tril().slice(0, from);  // [T - from, T]
  const double scale = std::pow(double(K), -0.5);
  std::vector<double> first, entropy;
  for (int64_t h = 0; h < H; ++h) {  // head by head: [T, T] of one head at a time
    const auto scores = at::matmul(query[h].slice(0, from), key[h / group].t()) * scale;
    const auto weights = scores.masked_fill(~visible, -INFINITY).softmax(-1);
    first.push_back(weights.select(1, 0).mean().item<double>());
    const auto terms = at::where(weights == 0, at::zeros_like(weights), weights * weights.log());  // a NaN stays one
    entropy.push_back(-terms.sum(-1).mean().item<double>());
  }
  double mean = 0;
  for (double share : first) mean += share / double(H);
  nlohmann::json told = {{"queries_from", from},
                         {"first_token", number(mean)},
                         {"first_token_by_head", numbers(at::tensor(first, at::kDouble))},
                         {"entropy_by_head", numbers(at::tensor(entropy, at::kDouble))}};
  if (gate.defined()) told["gate"] = shares(gate.to(at::kDouble).sigmoid());
  return told;
}

nlohmann::json delta_rule(const at::Tensor& log_decay, const at::Tensor& beta, const at::Tensor& state) {
  nlohmann::json told = {{"decay", shares(log_decay.to(at::kDouble).exp())}, {"beta", shares(beta)}};
  if (state.defined()) {
    const auto norms = state[0].to(at::kDouble).flatten(1).norm(2, {-1});  // [Hv]
    told["state_norm_by_head"] = numbers(norms);
    told["state_norm"] = number(norms.norm().item<double>());
  }
  return told;
}

}  // namespace lockstep::inspect
