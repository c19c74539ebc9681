// Direct contributions: what one neuron of an MLP, by itself, writes towards a token.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "inspect/inspection.h"
#include "inspect/numbers.h"
#include "nn/layers.h"

namespace lockstep::inspect {

namespace {

constexpr int64_t kByLayer = 8;   // neurons listed per layer
constexpr int64_t kOverall = 12;  // and over all layers
constexpr int64_t kFavoured = 6;  // tokens listed per neuron

struct Strong {
  int64_t layer, neuron;
  double activation, contribution;
};

}  // namespace

const at::Tensor& weight_of(const Mirror& mirror, const std::string& path) {
  const auto* linear = dynamic_cast<Linear*>(mirror.model().find(path));
  if (!linear) throw InputError(path + ": this family has no such linear module; its neurons cannot be told of");
  return linear->weight;
}

at::Tensor final_scale(const Mirror& mirror) {
  const auto* norm = mirror.model().find("model.norm");
  if (const auto* offset = dynamic_cast<const OffsetRMSNorm*>(norm)) return 1 + offset->weight.to(at::kDouble);
  if (const auto* plain = dynamic_cast<const RMSNorm*>(norm)) return plain->weight.to(at::kDouble);
  throw InputError("model.norm: its scale is not known to the inspector");
}

nlohmann::json neurons(const Mirror& mirror, const std::vector<at::Tensor>& activations, int64_t target, double rms) {
  const auto scale = final_scale(mirror);                                                      // [D]
  const auto& head = weight_of(mirror, "lm_head");                                             // [V, D]
  const auto direction = (head[target].to(at::kDouble) * scale).to(at::kFloat).view({1, -1});  // [1, D]
  std::vector<Strong> overall;
  auto layers = nlohmann::json::array();
  std::vector<std::vector<Strong>> by_layer;
  for (size_t i = 0; i < activations.size(); ++i) {
    const auto& down = weight_of(mirror, fmt::format("model.layers.{}.mlp.down_proj", i));  // [D, F]
    const auto contribution =
        activations[i] * at::matmul(direction, down.to(at::kFloat))[0];  // [F], the product in float64
    const auto count = std::min<int64_t>(kByLayer, contribution.numel());
    const auto order = std::get<1>(contribution.abs().topk(count));
    std::vector<Strong> strong;
    for (int64_t k = 0; k < count; ++k) {
      const auto neuron = order[k].item<int64_t>();
      strong.push_back({static_cast<int64_t>(i), neuron, activations[i][neuron].item<double>(),
                        contribution[neuron].item<double>()});
    }
    overall.insert(overall.end(), strong.begin(), strong.end());
    layers.push_back({{"layer", i}, {"total", number(contribution.sum().item<double>())}});
    by_layer.push_back(std::move(strong));
  }
  std::stable_sort(overall.begin(), overall.end(), [](const Strong& a, const Strong& b) {
    const auto size = [](const Strong& s) { return std::isfinite(s.contribution) ? std::abs(s.contribution) : 0; };
    return size(a) > size(b);
  });
  overall.resize(std::min<size_t>(overall.size(), kOverall));

  // The tokens that each column favours, for the strongest of every layer and those of all: one product.
  std::vector<std::pair<int64_t, int64_t>> wanted;
  auto want = [&](const Strong& s) {
    const std::pair place{s.layer, s.neuron};
    if (std::find(wanted.begin(), wanted.end(), place) == wanted.end()) wanted.push_back(place);
  };
  for (const auto& strong : by_layer) want(strong.front());
  for (const auto& strong : overall) want(strong);
  std::vector<at::Tensor> columns;
  for (const auto& [layer, neuron] : wanted) {
    const auto& down = weight_of(mirror, fmt::format("model.layers.{}.mlp.down_proj", layer));
    columns.push_back((down.select(1, neuron).to(at::kDouble) * scale).to(head.scalar_type()));
  }
  const auto favours = at::matmul(at::stack(columns), head.t());  // [n, V]
  const auto best = std::get<1>(favours.topk(std::min<int64_t>(kFavoured, head.size(0)), -1));

  auto told = [&](const Strong& s) {
    nlohmann::json row = {{"layer", s.layer},
                          {"neuron", s.neuron},
                          {"activation", number(s.activation)},
                          {"contribution", number(s.contribution)},
                          {"logit", number(s.contribution / rms)}};
    const auto place = std::find(wanted.begin(), wanted.end(), std::pair{s.layer, s.neuron});
    if (place == wanted.end()) return row;
    auto ids = nlohmann::json::array();
    for (int64_t k = 0; k < best.size(1); ++k) ids.push_back(best[place - wanted.begin()][k].item<int64_t>());
    row["favours"] = std::move(ids);
    return row;
  };
  for (size_t i = 0; i < by_layer.size(); ++i) {
    layers[i]["top"] = nlohmann::json::array();
    for (const auto& strong : by_layer[i]) layers[i]["top"].push_back(told(strong));
  }
  auto strongest = nlohmann::json::array();
  for (const auto& strong : overall) strongest.push_back(told(strong));
  return {{"target", target}, {"rms", number(rms)}, {"layers", std::move(layers)}, {"strongest", std::move(strongest)}};
}

}  // namespace lockstep::inspect
