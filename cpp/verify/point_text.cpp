#include "verify/point_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

namespace lockstep {

using nlohmann::json;

std::string group_of(const std::string& point) {
  static const std::regex layer(R"(model\.layers\.\d+)");
  std::smatch found;
  if (std::regex_search(point, found, layer, std::regex_constants::match_continuous)) return found.str();
  const auto end = std::min(point.find('@'), point.rfind('.'));
  return point.rfind("lm_head", 0) == 0 ? "logits" : point.substr(0, end);
}

std::string point_text(const json& p) {
  auto text = fmt::format("{} ({}): {}", p["point"].get<std::string>(), p["input"].get<std::string>(),
                          p["verdict"].get<std::string>());
  if (p.contains("max_abs") && p["max_abs"].is_number() && p.contains("bad_elements")) {
    text += fmt::format("; {} of {} elements, worst |diff| {:.1e} at {}", p["bad_elements"].get<int64_t>(),
                        p["elements"].get<int64_t>(), p["max_abs"].get<double>(), p["worst_index"].dump());
  }
  for (const auto& [key, whose] : {std::pair("ratio", "here"), std::pair("reference_ratio", "in the trace")}) {
    if (p.contains(key) && p[key].is_number()) {
      text += fmt::format("; {:.3g} x the noise floor {}", p[key].get<double>(), whose);
    }
  }
  if (p.contains("note") && p["note"].is_string()) text += "; " + p["note"].get<std::string>();
  return text;
}

}  // namespace lockstep
