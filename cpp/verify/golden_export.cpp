#include "verify/golden_export.h"

#include <ATen/Version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>

#include "core/metrics.h"
#include "core/tensor_text.h"
#include "verify/point_text.h"
#include "verify/replay.h"

namespace lockstep {

using nlohmann::json;

namespace {

std::string worst(const json& before, const json& after) {
  const auto a = verdict_named(before["verdict"]), b = verdict_named(after["verdict"]);
  return name(std::max(a, b));
}

json producer_of(const Trace& golden) {
  return {{"lockstep", LOCKSTEP_VERSION},
          {"torch", TORCH_VERSION},
          {"transformers", text_of(golden.manifest(), "transformers")},
          {"python", nullptr},
          {"cpu_capability", at::get_cpu_capability()},
          {"threads", golden.manifest()["threads"]}};
}

/// What the manifest states of the two replays.
json verification_of(const json& before, const json& after, const Trace& golden) {
  json nearest;
  for (const auto* report : {&before, &after}) {
    for (const auto& p : (*report)["points"]) {
      const auto ratio = p.find("ratio");
      if (ratio == p.end() || !ratio->is_number()) continue;
      if (nearest.is_null() || *ratio > nearest["ratio"]) {
        nearest = {{"point", p["point"]}, {"input", p["input"]}, {"floor", p["floor"]}, {"ratio", *ratio}};
      }
    }
  }
  json options = before["options"];
  options["dtype"] = golden.dtype(), options["attn"] = golden.attn();
  const auto& coverage = before["legs"]["coverage"];
  const auto legs = [](const json& report) {
    return json{{"provenance", report["legs"]["provenance"]["verdict"]},
                {"lockstep", report["legs"]["lockstep"]["verdict"]}};
  };
  return {
      {"verdict", worst(before, after)},
      {"reference", fmt::format("a golden trace of transformers {}", text_of(golden.manifest(), "transformers"))},
      {"golden", golden.manifest()["golden"]["digest"]},
      {"options", options},
      {"tolerances",
       {{"atol", before["options"]["atol"]},
        {"rtol", before["options"]["rtol"]},
        {"accept", before["options"]["accept"]}}},
      {"noise_floor", nearest},
      {"legs", {{"source", legs(before)}, {"written", legs(after)}}},
      {"coverage", {{"exercised", coverage["exercised"]}, {"absent", coverage["absent"]}, {"rows", coverage["rows"]}}},
      {"points", before["points"].size()},
      {"inputs", golden.manifest()["forwards"]}};
}

/// Why nothing was exported, in one sentence; empty if it was.
std::string refusal(const json& data) {
  if (data["exit_code"] == 0) return "";
  const bool written = !data["written"].is_null();
  const auto& found = data[written ? "written" : "source"];
  if (found["exit_code"] == 0) {
    return fmt::format("the golden trace does not exercise {}: what nobody ran is not exported as verified",
                       fmt::join(data["not_exercised"].get<std::vector<std::string>>(), ", "));
  }
  return fmt::format("the {} checkpoint does not pass: {}", written ? "written" : "source",
                     found["first"].is_null() ? "provenance deviates" : point_text(found["first"]));
}

}  // namespace

json export_by_golden(const std::string& folder, const std::string& out, const std::shared_ptr<const Trace>& golden,
                      const GoldenExportOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Say say = options.say ? options.say : [](const std::string&) {};
  const auto source = Mirror::open(folder);
  Export job(*source, out, options.plan);
  ReplayOptions wanted;
  wanted.accept_rounding = options.accept_rounding, wanted.stream = options.stream;
  wanted.say = [&](const std::string& text) { say("source: " + text); };
  const auto before = replay(folder, golden, wanted);
  const json unexercised = before["legs"]["coverage"]["not_exercised"];
  json data{{"format_version", 1},
            {"command", "export"},
            {"verdict", before["verdict"]},
            {"model", before["model"]},
            {"pedigree", before["pedigree"]},
            {"exit_code", before["exit_code"] != 0 ? before["exit_code"] : json(unexercised.empty() ? 0 : 2)},
            {"options",
             {{"dtype", options.plan.dtype ? json(dtype_name(*options.plan.dtype)) : json()},
              {"max_shard_size", options.plan.max_shard_size ? json(*options.plan.max_shard_size) : json()},
              {"keep", options.plan.text_only ? "text" : "all"},
              {"accept", options.accept_rounding ? json("rounding") : json()}}},
            {"digest", nullptr},
            {"not_exercised", unexercised},
            {"source", before},
            {"written", nullptr}};
  const auto timed = [&] {
    data["seconds"] = {{"total", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()}};
    data["refused"] = refusal(data);
  };
  if (data["exit_code"] != 0) {
    timed();
    return data;
  }
  job.write(say);
  job.reread(say);
  // The trace's digests are of the source's bytes, which a conversion changed.
  std::map<std::string, std::string> digests;
  for (const auto& [tensor, stated] : job.tensors().items()) {
    digests[tensor] = stated["source"]["sha256"];
    wanted.converted |= stated["conversion"] != "none";
  }
  wanted.digests = digests;
  const auto& left_out = job.plan().tensors_left_out;
  wanted.left_out = {left_out.begin(), left_out.end()};
  wanted.say = [&](const std::string& text) { say("written: " + text); };
  const auto after = replay(job.folder(), golden, wanted);
  data["written"] = after, data["verdict"] = worst(before, after), data["exit_code"] = after["exit_code"];
  timed();
  if (data["exit_code"] != 0) return data;
  say("writing the manifest");
  const auto manifest = job.finish(data.dump(1) + "\n", producer_of(*golden), verification_of(before, after, *golden));
  for (const char* key : {"digest", "files", "tensors", "left_out"}) data[key] = manifest[key];
  return data;
}

std::vector<std::string> golden_export_lines(const json& data, const std::string& out) {
  if (data["exit_code"] != 0) return {"not exported: " + data["refused"].get<std::string>()};
  std::map<std::string, int64_t> kinds;
  for (const auto& [_, t] : data["tensors"].items()) {
    const std::string conversion = t["conversion"];
    ++kinds[conversion == "none" ? "byte for byte"
                                 : fmt::format("{} to {}, {}", t["source"]["dtype"].get<std::string>(),
                                               t["dtype"].get<std::string>(), conversion)];
  }
  std::vector<std::string> lines;
  for (const auto& [kind, count] : kinds) lines.push_back(fmt::format("{} tensors {}", count, kind));
  for (const auto& [what, names] : data["left_out"].items()) {
    if (names.empty()) continue;
    lines.push_back(fmt::format("{} {} left out: {}{}", names.size(), what, names[0].get<std::string>(),
                                names.size() > 1 ? ", ..." : ""));
  }
  uint64_t bytes = 0;
  for (const auto& [_, file] : data["files"].items()) bytes += file["bytes"].get<uint64_t>();
  lines.push_back(fmt::format("exported: {}, {} tensors, {} bytes, {}; digest {}", out, data["tensors"].size(), bytes,
                              data["verdict"].get<std::string>(), data["digest"].get<std::string>()));
  return lines;
}

}  // namespace lockstep
