#include "verify/rounding.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <regex>
#include <vector>

namespace lockstep {

using nlohmann::json;

std::string judged_as(const std::string& point, int64_t layers) {
  static const std::map<std::string, std::string> passed_on = {
      {"lm_head.input", "model.norm.output"},
      {"model.output", "model.norm.output"},
      {"model.rotary_emb.input", "model.embed_tokens.output"},
      {"model.rotary_emb.output", "model.rotary_emb@cos"},
      {"model.layers.0.input", "model.embed_tokens.output"},
  };
  if (point == "model.norm.input") return fmt::format("model.layers.{}.output", layers - 1);
  if (const auto it = passed_on.find(point); it != passed_on.end()) return it->second;
  static const std::regex layer_input(R"(model\.layers\.(\d{1,6})\.input)");
  std::smatch found;
  if (std::regex_match(point, found, layer_input))
    return fmt::format("model.layers.{}.output", std::stoll(found[1]) - 1);
  return point;
}

json settle_rounding(json points, const json& judged, int64_t layers, bool by_local_check) {
  std::map<std::pair<std::string, std::string>, std::vector<const json*>> by_point;
  for (const auto& entry : judged) by_point[{entry["point"], entry["input"]}].push_back(&entry);
  for (auto& point : points) {
    point["floor"] = point["ratio"] = point["reference_ratio"] = nullptr;
    const auto it = by_point.find({judged_as(point["point"], layers), point["input"]});
    if (it == by_point.end()) continue;
    bool sides[2] = {false, false}, all_rounding = true;
    double worst[2] = {-1, -1};
    for (const auto* entry : it->second) {
      const bool candidate = (*entry)["side"] == "candidate";
      sides[candidate] = true;
      const auto& verdict = (*entry)["verdict"];
      all_rounding = all_rounding && (verdict == "rounding" || verdict == "agrees" || verdict == "identical");
      const double ratio = (*entry)["ratio"].is_null() ? 0 : (*entry)["ratio"].get<double>();
      if (ratio <= worst[candidate]) continue;
      worst[candidate] = ratio, point[candidate ? "ratio" : "reference_ratio"] = (*entry)["ratio"];
      if (candidate) point["floor"] = (*entry)["floor"];
    }
    if (!sides[0] || !sides[1]) continue;
    if (point["verdict"] == "deviates" && all_rounding) point["verdict"] = "rounding";
    if (by_local_check && point["verdict"] == "agrees" && !all_rounding) point["verdict"] = "deviates";
  }
  return points;
}

}  // namespace lockstep
