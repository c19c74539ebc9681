// The same token at the end of several prompts: one vector at the embedding, others above.
#include <algorithm>

#include "core/error.h"
#include "inspect/inspection.h"
#include "inspect/numbers.h"

namespace lockstep::inspect {

nlohmann::json meaning(const std::vector<const Inspection*>& prompts) {
  if (prompts.size() < 2) throw InputError("expected two or more prompts that end in the same token");
  for (const auto* p : prompts) {
    if (p->last_id() != prompts[0]->last_id()) throw InputError("expected prompts that end in the same token");
    if (p->layers() != prompts[0]->layers()) throw InputError("expected prompts of one model");
  }
  const auto depths = prompts[0]->layers() + 1;
  std::vector<double> mean(static_cast<size_t>(depths), 0.0);
  auto pairs = nlohmann::json::array();
  const auto count = prompts.size() * (prompts.size() - 1) / 2;
  for (size_t a = 0; a < prompts.size(); ++a) {
    for (size_t b = a + 1; b < prompts.size(); ++b) {
      auto cosine = nlohmann::json::array(), distance = nlohmann::json::array(), relative = nlohmann::json::array();
      for (int64_t d = 0; d < depths; ++d) {
        const auto x = prompts[a]->last_stream(d), y = prompts[b]->last_stream(d);
        const auto near = cosines(x.unsqueeze(0), y.unsqueeze(0)).item<double>();
        const auto apart = (x - y).norm().item<double>();
        const auto size = 0.5 * (x.norm().item<double>() + y.norm().item<double>());
        mean[static_cast<size_t>(d)] += near / double(count);
        cosine.push_back(number(near));
        distance.push_back(number(apart));
        relative.push_back(number(size == 0 ? 0 : apart / size));
      }
      pairs.push_back({{"prompts", {a, b}}, {"cosine", cosine}, {"distance", distance}, {"relative", relative}});
    }
  }
  // They part at the first layer after which they are half as far apart as they ever come; never, if they stay one.
  // At the embedding they are one, also where that is zero and has no direction.
  const auto least = *std::min_element(mean.begin() + 1, mean.end());
  nlohmann::json parts = nullptr;
  if (least < 1 - 1e-12) {  // false for a NaN
    const auto half = std::find_if(mean.begin() + 1, mean.end(), [&](double m) { return m <= (1 + least) / 2; });
    parts = half - mean.begin() - 1;
  }
  return {{"token", prompts[0]->last_id()},
          {"pairs", std::move(pairs)},
          {"mean_cosine", numbers(at::tensor(mean, at::kDouble))},
          {"part_at_layer", parts}};
}

}  // namespace lockstep::inspect
