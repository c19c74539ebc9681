#include "verify/bisect_trace.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "core/error.h"
#include "core/junit.h"
#include "core/metrics.h"
#include "models/mirror.h"
#include "verify/bisect.h"
#include "verify/compare_traces.h"
#include "verify/coverage.h"
#include "verify/len130.h"

namespace lockstep {

using nlohmann::json;

namespace {

json covered(const Mirror& mirror, const Trace& trace) {
  Coverage coverage(mirror.model().mechanisms());
  for (const auto& f : trace.forwards()) {
    const Inputs inputs{f.ids, f.positions, f.mask};
    try {
      mirror.model().check(inputs, trace.past(f.name), trace.cached(f.name));
    } catch (const InputError& error) {
      throw InputError(fmt::format("input '{}': {}", f.name, error.what()));
    }
    coverage.add(inputs, trace.past(f.name), trace.cached(f.name));
  }
  return coverage.finish();
}

/// Does every tensor that both promise have the same bits?
bool identical(const Trace& a, const Trace& b) {
  for (const auto& f : a.forwards()) {
    for (const auto& point : a.points()) {
      if (!a.promised(f.name, point) || !b.promised(f.name, point)) continue;
      const auto x = a.tensor(f.name, point), y = b.tensor(f.name, point);
      if (!x.defined() || !y.defined() || x.sizes() != y.sizes() || x.scalar_type() != y.scalar_type() ||
          !same_bits(x, y)) {
        return false;
      }
    }
  }
  return true;
}

std::string cause_text(const json& cause) {
  auto text = cause["hypothesis"].get<std::string>();
  if (!cause["index"].is_null()) {
    text = fmt::format("one weight, {} {}: off by {:.4g} +- {:.1g}", cause["parameter"].get<std::string>(),
                       cause["index"].dump(), cause["estimate"].get<double>(), cause["estimate_error"].get<double>());
  } else if (cause["estimate"].is_number()) {
    text += fmt::format(": {} {:.6g} +- {:.1g}, config {:.6g}", cause["parameter"].get<std::string>(),
                        cause["estimate"].get<double>(), cause["estimate_error"].get<double>(),
                        cause["config"].get<double>());
  }
  if (cause["class"] == "precision") text += " (precision)";
  const auto also = cause["also"].get<std::vector<std::string>>();
  return also.empty() ? text : fmt::format("{}; cannot be told from {}", text, fmt::join(also, ", "));
}

std::string fault_text(const json& f) {
  auto text = fmt::format("{} ({}): {}", f["point"].get<std::string>(), f["side"].get<std::string>(),
                          f["verdict"].get<std::string>());
  if (f["value"].is_string()) text += " at " + f["value"].get<std::string>();
  if (f["ratio"].is_number()) {
    text += fmt::format("; {:.3g} x the noise floor in {}, first seen in {}", f["ratio"].get<double>(),
                        f["input"].get<std::string>(), f["first_input"].get<std::string>());
  }
  if (f["note"].is_string()) text += "; " + f["note"].get<std::string>();
  return text;
}

}  // namespace

json bisect_trace(const std::string& folder, const std::shared_ptr<const Trace>& candidate,
                  const std::shared_ptr<const Trace>& reference, const BisectTraceOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto mirror = Mirror::open(folder);
  auto coverage = covered(*mirror, *candidate);
  if (reference) same_inputs({*reference, "the reference"}, {*candidate, "the candidate"});
  BisectOptions wanted;
  wanted.dtype = candidate->dtype(), wanted.attn = candidate->attn();
  wanted.values = options.values, wanted.thorough = options.thorough, wanted.progress = options.progress;
  wanted.len130 = {"len130", len130_ids(mirror->model().mechanisms().vocab), {}, {}, ""};
  auto found = bisect(folder, reference, candidate, wanted);
  candidate->check_unchanged();
  if (reference) reference->check_unchanged();
  const auto& drift = found["drift"];
  if (found["faults"].empty() &&
      std::all_of(drift.begin(), drift.end(), [](const json& d) { return d["injected"].is_null(); })) {
    throw InputError(
        "the candidate shows no sublayer with its input and output under Hugging Face's names: nothing could be judged "
        "(compare its logits with `compare`)");
  }
  auto worst = reference && identical(*candidate, *reference) ? Verdict::identical : Verdict::rounding;
  const auto count = [&](Verdict verdict, bool there) {
    if (there) worst = std::max(worst, verdict);
    return there;
  };
  bool bad = count(Verdict::missing, !found["extra"].empty());
  bad |= count(Verdict::non_finite, found["nan_rows"].get<int64_t>() > 0);
  for (const auto& fault : found["faults"]) bad |= count(verdict_named(fault["verdict"]), true);
  for (const char* key : {"not_compared", "extra", "skipped_rows", "nan_rows"}) coverage[key] = found[key];
  coverage["dropped"] = json::object();
  auto cost = found["cost"];
  cost["reference_forwards"] = cost["candidate_forwards"] = cost["operations"] = 0;
  const auto producer = candidate->manifest().value("producer", json());
  const json pedigree{{"transformers", nullptr},
                      {"torch", TORCH_VERSION},
                      {"reference", reference ? reference->manifest().value("producer", json()) : json()},
                      {"cpu_capability", at::get_cpu_capability()},
                      {"threads", at::get_num_threads()},
                      {"failed", json::array()}};
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {
      {"format_version", 1},
      {"command", "bisect"},
      {"verdict", name(worst)},
      {"model",
       {{"family", mirror->family().name},
        {"layer_types", mirror->model().mechanisms().layer_types},
        {"digest", digest_of(mirror->checkpoint(), mirror->checkpoint().digests())}}},
      {"pedigree", pedigree},
      {"seconds", {{"total", seconds}}},
      {"exit_code", bad ? 1 : 0},
      {"candidate", {{"engine", "trace"}, {"producer", producer}}},
      {"options",
       {{"dtype", candidate->dtype()}, {"attn", candidate->attn()}, {"points", options.values ? "all" : "sublayer"}}},
      {"parameters", json::array()},
      {"drift", drift},
      {"steps", nullptr},
      {"faults", found["faults"]},
      {"notes", found["notes"]},
      {"power", found["power"]},
      {"projections", found["projections"]},
      {"cost", cost},
      {"coverage", coverage}};
}

namespace {

/// Rows that no sublayer can be blamed for: their NaN was in its input. Empty if there is none.
std::string nan_sentence(const json& data) {
  const auto count = data["coverage"]["nan_rows"].get<int64_t>();
  if (count == 0) return "";
  return fmt::format("non_finite: {} rows hold a NaN that came from above: no sublayer made it", count);
}

}  // namespace

std::vector<std::string> findings_lines(const json& data) {
  std::vector<std::string> lines;
  const auto& options = data["options"];
  lines.push_back(fmt::format("{}, {} layers; a trace in {}, {}", data["model"]["family"].get<std::string>(),
                              data["model"]["layer_types"].size(), options["dtype"].get<std::string>(),
                              options["attn"].get<std::string>()));
  const auto shown = [](const json& x, const char* style) {
    return x.is_number() ? fmt::format(fmt::runtime(style), x.get<double>()) : std::string("-");
  };
  lines.push_back(fmt::format("{:44}{:14}{:>10}{:>10}{:>10}{:>9}", "sublayer", "input", "inherited", "injected",
                              "floor", "x floor"));
  for (const auto& d : data["drift"]) {
    const bool measured = d["injected"].is_number() && d["floor"].is_number() && d["floor"] != 0;
    lines.push_back(
        fmt::format("{:44}{:14}{:>10}{:>10}{:>10}{:>9}", d["point"].get<std::string>(),
                    d["input"].is_null() ? "-" : d["input"].get<std::string>(), shown(d["inherited"], "{:.1e}"),
                    shown(d["injected"], "{:.1e}"), shown(d["floor"], "{:.1e}"),
                    measured ? fmt::format("{:.3g}", d["injected"].get<double>() / d["floor"].get<double>()) : "-"));
  }
  size_t mine = 0;
  for (const auto& f : data["faults"]) {
    mine += f["side"] == "candidate";
    lines.push_back(fault_text(f));
    if (f["cause"].is_object()) lines.push_back("  cause: " + cause_text(f["cause"]));
    if (f["remark"].is_string()) lines.push_back("  remark: " + f["remark"].get<std::string>());
  }
  for (const auto& n : data["notes"]) {
    const auto text = n["hypothesis"].is_null()
                          ? fmt::format("{} (first in {})", n["text"].get<std::string>(), n["input"].get<std::string>())
                          : cause_text(n) + ", below the bound";
    lines.push_back(
        fmt::format("note: {} ({}): {}", n["point"].get<std::string>(), n["side"].get<std::string>(), text));
  }
  for (const auto& [hypothesis, standings] : data["power"].items()) {
    std::string text = "power: " + hypothesis;
    for (const auto& [standing, where] : standings.items()) text += fmt::format(", {} {}", standing, where.size());
    lines.push_back(text);
  }
  const auto& coverage = data["coverage"];
  if (!coverage["not_exercised"].empty()) {
    lines.push_back(
        fmt::format("not exercised: {}", fmt::join(coverage["not_exercised"].get<std::vector<std::string>>(), ", ")));
  }
  if (!coverage["not_compared"].empty()) {
    lines.push_back(fmt::format("not compared: {} points ({}, ...)", coverage["not_compared"].size(),
                                coverage["not_compared"][0].get<std::string>()));
  }
  for (const auto& name : coverage["extra"]) {
    lines.push_back(fmt::format("extra: {} is in the file but not in its manifest", name.get<std::string>()));
  }
  if (const auto text = nan_sentence(data); !text.empty()) lines.push_back(text);
  const auto others = data["faults"].size() - mine;
  lines.push_back(fmt::format("{}: {}, {} faulty sublayer{}{} in {:.1f} s", data["exit_code"] == 0 ? "passes" : "fails",
                              data["verdict"].get<std::string>(), mine, mine == 1 ? "" : "s",
                              others ? fmt::format(", {} of the reference", others) : "",
                              data["seconds"]["total"].get<double>()));
  return lines;
}

std::string findings_junit(const json& data) {
  std::vector<JUnitCase> cases;
  for (const auto& d : data["drift"]) {
    std::string problem;
    for (const auto& f : data["faults"]) {
      if (f["point"] != d["point"]) continue;
      problem += fault_text(f) + (f["cause"].is_object() ? "; " + cause_text(f["cause"]) : "") + "\n";
    }
    cases.push_back({"bisect", d["point"].get<std::string>(), problem});
  }
  std::string extra;
  for (const auto& name : data["coverage"]["extra"]) extra += "extra: " + name.get<std::string>() + "\n";
  cases.push_back({"bisect", "manifest", extra});
  cases.push_back({"bisect", "finite", nan_sentence(data)});
  return junit_text("lockstep bisect", cases);
}

}  // namespace lockstep
