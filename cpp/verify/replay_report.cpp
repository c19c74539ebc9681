#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "core/junit.h"
#include "core/metrics.h"
#include "verify/point_text.h"
#include "verify/replay.h"

namespace lockstep {

using nlohmann::json;

namespace {

std::string counted(const json& list) {
  return fmt::format("{}", fmt::join(list.get<std::vector<std::string>>(), ", "));
}

}  // namespace

std::vector<std::string> replay_lines(const json& data) {
  std::vector<std::string> lines;
  const auto& pedigree = data["pedigree"];
  const auto& legs = data["legs"];
  lines.push_back(fmt::format("{}, {} layers; golden trace of transformers {}, torch {}, {}, {}, {} threads, {}",
                              data["model"]["family"].get<std::string>(), data["model"]["layer_types"].size(),
                              pedigree["transformers"].get<std::string>(), pedigree["torch"].get<std::string>(),
                              pedigree["attn"].get<std::string>(), pedigree["dtype"].get<std::string>(),
                              pedigree["threads"].dump(), pedigree["cpu_capability"].get<std::string>()));
  const auto& provenance = legs["provenance"];
  lines.push_back(fmt::format("provenance  {}  {} tensors compared by digest", provenance["verdict"].get<std::string>(),
                              provenance["compared"].get<int64_t>()));
  for (const auto& d : provenance["differing"]) {
    if (lines.size() > 22) break;
    lines.push_back(fmt::format("  {}: reference {}, here {}", d["tensor"].get<std::string>(),
                                d["reference"].get<std::string>(), d["mirror"].get<std::string>()));
  }
  lines.push_back(fmt::format("lockstep    {}  {} of {} points identical",
                              legs["lockstep"]["verdict"].get<std::string>(),
                              legs["lockstep"]["identical"].get<int64_t>(), legs["lockstep"]["points"].get<int64_t>()));
  lines.push_back(fmt::format("coverage    exercised: {}", counted(legs["coverage"]["exercised"])));
  if (!legs["coverage"]["not_exercised"].empty()) {
    lines.push_back(fmt::format("            not exercised: {}", counted(legs["coverage"]["not_exercised"])));
  }
  if (!data["not_compared"].empty()) {
    lines.push_back(fmt::format("            not compared, since the trace does not promise it: {} points, {}, ...",
                                data["not_compared"].size(), data["not_compared"][0].get<std::string>()));
  }
  if (!data["why"].is_null()) lines.push_back(data["why"].get<std::string>());
  if (!data["first"].is_null()) lines.push_back("first " + point_text(data["first"]));
  lines.push_back(fmt::format("{}: {} in {:.1f} s", data["exit_code"] == 0 ? "passes" : "fails",
                              data["verdict"].get<std::string>(), data["seconds"]["total"].get<double>()));
  return lines;
}

std::string replay_junit(const json& data) {
  const auto passing = verdict_named(data["options"]["passes"]);
  std::vector<JUnitCase> cases;
  std::string differing;
  for (const auto& d : data["legs"]["provenance"]["differing"]) {
    differing += fmt::format("{}: reference {}, here {}\n", d["tensor"].get<std::string>(),
                             d["reference"].get<std::string>(), d["mirror"].get<std::string>());
  }
  cases.push_back({"provenance", "tensors", differing});
  std::map<std::pair<std::string, std::string>, size_t> places;
  for (const auto& p : data["points"]) {
    const auto key = std::pair("lockstep." + p["input"].get<std::string>(), group_of(p["point"]));
    const auto [it, fresh] = places.emplace(key, cases.size());
    if (fresh) cases.push_back({key.first, key.second, ""});
    if (verdict_named(p["verdict"]) > passing) cases[it->second].problem += point_text(p) + "\n";
  }
  return junit_text("lockstep verify", cases);
}

}  // namespace lockstep
