// The same token at the end of several prompts: one vector at the embedding, others above.
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
        relative.push_back(number(size > 0 ? apart / size : 0));
      }
      pairs.push_back({{"prompts", {a, b}}, {"cosine", cosine}, {"distance", distance}, {"relative", relative}});
    }
  }
  // They part where the mean cosine falls most from one depth to the next.
  int64_t parts = 1;
  for (int64_t d = 2; d < depths; ++d) {
    const auto fall = [&](int64_t at) { return mean[static_cast<size_t>(at - 1)] - mean[static_cast<size_t>(at)]; };
    if (fall(d) > fall(parts)) parts = d;
  }
  return {{"token", prompts[0]->last_id()},
          {"pairs", std::move(pairs)},
          {"mean_cosine", numbers(at::tensor(mean, at::kDouble))},
          {"part_at_layer", parts - 1}};
}

}  // namespace lockstep::inspect
