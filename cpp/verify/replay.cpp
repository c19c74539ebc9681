#include "verify/replay.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <regex>
#include <set>

#include "core/error.h"
#include "core/junit.h"
#include "core/sha256.h"
#include "core/tensor_text.h"
#include "models/mirror.h"
#include "verify/bisect.h"
#include "verify/coverage.h"
#include "verify/lockstep.h"
#include "verify/rounding.h"

namespace lockstep {

using nlohmann::json;

namespace {

constexpr const char* kLen130 = "len130";

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string text_of(const json& manifest, const char* key) {
  const auto it = manifest.find(key);
  return it != manifest.end() && it->is_string() ? it->get<std::string>() : "";
}

/// 2.13.0+cpu -> 2.13.0: the wheels for other devices hold the same code for the CPU.
std::string release_of(const std::string& version) { return version.substr(0, version.find('+')); }

/// As many threads as the recording had, for as long as it lives: sums are split by threads.
class Threads {
 public:
  explicit Threads(const json& manifest) : before_(at::get_num_threads()) {
    const auto threads = manifest["threads"].get<int64_t>();
    if (threads < 1 || threads > 1024)
      throw LoadError(fmt::format("manifest /threads: expected 1 to 1024, found {}", threads));
    at::set_num_threads(static_cast<int>(threads));
  }
  ~Threads() { at::set_num_threads(before_); }

 private:
  const int before_;
};

/// A copy of what the mirror's run records, for the local check.
struct Copies final : Recorder {
  Copies(Trace& trace, std::string forward) : trace(trace), forward(std::move(forward)) {}
  void record(const std::string& point, const at::Tensor& x) override {
    trace.add(forward, point, x.detach().clone(at::MemoryFormat::Contiguous));
  }
  Trace& trace;
  const std::string forward;
};

class Replay {
 public:
  Replay(const std::string& folder, std::shared_ptr<const Trace> golden, const ReplayOptions& options)
      : folder_(folder), golden_(std::move(golden)), options_(options), threads_(golden_->manifest()) {}

  json run() {
    const auto start = std::chrono::steady_clock::now();
    say("opening " + folder_);
    mirror_ = Mirror::open(folder_);
    check_forwards();
    provenance();
    const auto dtype = *run_dtype(golden_->dtype());
    mirror_->bind(dtype);
    seconds_["load"] = seconds_since(start);
    forwards();
    const bool same_machine = same_release() && same_capability();
    if (std::any_of(points_.begin(), points_.end(), [](const json& p) { return differs(p); })) local_check();
    mirror_->checkpoint().check_unchanged();
    golden_->check_unchanged();
    seconds_["total"] = seconds_since(start);
    return report(same_machine);
  }

 private:
  static bool differs(const json& p) { return p["verdict"] == "agrees" || p["verdict"] == "deviates"; }
  void say(const std::string& text) const {
    if (options_.say) options_.say(text);
  }
  bool same_release() const { return release_of(text_of(golden_->manifest(), "torch")) == release_of(TORCH_VERSION); }
  bool same_capability() const { return text_of(golden_->manifest(), "cpu_capability") == at::get_cpu_capability(); }

  void check_forwards() const {
    for (const auto& f : golden_->forwards()) {
      try {
        mirror_->model().check({f.ids, f.positions, f.mask}, golden_->past(f.name), golden_->cached(f.name));
      } catch (const InputError& error) {
        throw InputError(fmt::format("input '{}': {}", f.name, error.what()));
      }
    }
  }

  void provenance() {
    const auto start = std::chrono::steady_clock::now();
    say("provenance: the digest of every tensor");
    const auto own = mirror_->checkpoint().digests();
    model_digest_ = digest_of(mirror_->checkpoint(), own);
    const auto& digests = options_.digests ? *options_.digests : own;
    const auto& stated = golden_->manifest()["model"]["tensors"];
    json differing = json::array();
    const auto differ = [&](const std::string& tensor, const json& reference, const json& found) {
      differing.push_back({{"tensor", tensor}, {"index", nullptr}, {"reference", reference}, {"mirror", found}});
    };
    for (const auto& [name, digest] : stated.items()) {
      if (options_.left_out.count(name)) continue;
      const auto it = digests.find(name);
      if (it == digests.end()) {
        differ(name, digest, "absent");
      } else if (digest != it->second) {
        differ(name, digest, it->second);
      }
    }
    for (const auto& [name, digest] : digests) {
      if (!stated.contains(name)) differ(name, "absent", digest);
    }
    recordings(differ);
    provenance_ = {{"verdict", name(differing.empty() ? Verdict::identical : Verdict::deviates)},
                   {"differing", differing},
                   {"compared", stated.size()},
                   {"casts", json::object()}};
    seconds_["digest"] = seconds_since(start);
  }

  /// The trace's own tensors, which have a digest each as well.
  void recordings(const std::function<void(const std::string&, const json&, const json&)>& differ) const {
    const auto& stated = golden_->manifest()["golden"]["tensors"];
    const auto& file = *golden_->file();
    std::vector<const TensorInfo*> list;
    for (const auto& [name, info] : file.tensors()) list.push_back(&info);
    std::vector<std::string> found(list.size());
    at::parallel_for(0, static_cast<int64_t>(list.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Sha256 sha;
        sha.update(file.bytes(*list[i]), list[i]->end - list[i]->begin);
        found[i] = sha.hex();
      }
    });
    for (size_t i = 0; i < list.size(); ++i) {
      const auto it = stated.find(list[i]->name);
      if (it == stated.end() || *it != found[i]) {
        differ("the trace's " + list[i]->name, it == stated.end() ? json("absent") : *it, found[i]);
      }
    }
    for (const auto& [name, digest] : stated.items()) {
      if (!file.tensors().count(name)) differ("the trace's " + name, digest, "absent");
    }
  }

  /// The lowest level that holds every promised point.
  Level level() const {
    auto highest = Level::layer;
    for (const auto& point : golden_->points()) highest = std::max(highest, level_of(point));
    return highest;
  }

  /// The cache for a forward: new, or a copy of what its past left.
  std::shared_ptr<Cache> cache_of(const TraceForward& f) {
    if (!golden_->cached(f.name)) return nullptr;
    if (f.past.empty()) return caches_[f.name] = std::make_shared<Cache>(mirror_->model().new_cache());
    return caches_[f.name] = std::make_shared<Cache>(*caches_.at(f.past));
  }

  void forwards() {
    const auto variant = Variant::named(golden_->variant());
    Coverage coverage(mirror_->model().mechanisms());
    double seconds = 0;
    for (size_t i = 0; i < golden_->forwards().size(); ++i) {
      const auto& f = golden_->forwards()[i];
      say(fmt::format("replay: {} ({} of {})", f.name, i + 1, golden_->forwards().size()));
      const Inputs inputs{f.ids, f.positions, f.mask};
      coverage.add(inputs, golden_->past(f.name), golden_->cached(f.name));
      LockstepForward step(*mirror_, variant, attn(), level(), gate(), {f.name, inputs, cache_of(f)});
      for (const auto& point : golden_->points()) {
        if (!golden_->promised(f.name, point)) continue;
        const auto value = golden_->tensor(f.name, point);
        if (value.defined()) step.reference(point, value, false);
      }
      auto result = step.finish();
      seconds += step.mirror_seconds();
      std::set<std::string> seen;
      for (auto& p : result["points"]) {
        const std::string point = p["point"];
        seen.insert(point);
        if (golden_->promised(f.name, point)) {
          points_.push_back(std::move(p));
        } else {
          not_compared_.push_back(f.name + "/" + point);
        }
      }
      for (const auto& point : golden_->points()) {
        if (!golden_->promised(f.name, point)) continue;
        if (!seen.count(point)) {
          points_.push_back({{"point", point},
                             {"input", f.name},
                             {"verdict", "missing"},
                             {"max_abs", nullptr},
                             {"note", "promised, but neither in the trace nor a point of the mirror"}});
        }
      }
      if (!result["logits"].is_null()) logits_.push_back(result["logits"]);
    }
    for (const auto& tensor : golden_->unpromised()) {
      const auto slash = tensor.find('/');
      points_.push_back({{"point", slash == std::string::npos ? tensor : tensor.substr(slash + 1)},
                         {"input", slash == std::string::npos ? "" : tensor.substr(0, slash)},
                         {"verdict", "missing"},
                         {"max_abs", nullptr},
                         {"note", "in the trace, but not in its manifest"}});
    }
    coverage_ = coverage.finish();
    seconds_["mirror_and_comparison"] = seconds;
    caches_.clear();
  }

  void local_check() {
    say("local check: is it rounding?");
    auto mine = std::make_shared<Trace>(golden_->dtype(), golden_->attn(), golden_->variant(), golden_->forwards());
    const auto variant = Variant::named(golden_->variant());
    const at::NoGradGuard no_grad;
    for (const auto& f : golden_->forwards()) {
      Copies copies(*mine, f.name);
      const auto cache = cache_of(f);
      Run run(variant, attn(), level(), &copies, cache.get());
      mirror_->model().forward(run, {f.ids, f.positions, f.mask});
    }
    caches_.clear();
    BisectOptions options;
    options.dtype = golden_->dtype(), options.attn = golden_->attn();
    options.causes = false, options.points = true;
    options.values = level() == Level::all;
    options.len130 = {kLen130, len130(), {}, {}, ""};
    options.progress = options_.say;
    const auto found = bisect(folder_, golden_, mine, options);
    json differing = json::array();
    std::vector<size_t> where;
    for (size_t i = 0; i < points_.size(); ++i) {
      if (differs(points_[i])) where.push_back(i), differing.push_back(points_[i]);
    }
    differing =
        settle_rounding(differing, found["points"], mirror_->model().layers(), !(same_release() && same_capability()));
    for (size_t i = 0; i < where.size(); ++i) points_[where[i]] = differing[i];
  }

  /// What passes. The same torch and CPU give the same bits, unless the caller says what may differ.
  Verdict gate_of(bool same_machine) const {
    if (options_.bitwise) return Verdict::identical;
    if (options_.accept_rounding || !same_machine) return Verdict::rounding;
    return options_.gate ? Verdict::agrees : Verdict::identical;
  }

  at::Tensor len130() const {
    const auto row = golden_->manifest()["golden"]["len130"].get<std::vector<int64_t>>();
    const auto ids = at::tensor(row, at::kLong).unsqueeze(0);
    mirror_->model().check({ids, {}, {}}, 0, false);
    return ids;
  }

  Gate gate() const { return options_.gate.value_or(Gate{}); }
  Attn attn() const { return golden_->attn() == "eager" ? Attn::eager : Attn::sdpa; }

  json report(bool same_machine) {
    auto worst = Verdict::identical;
    json bad;
    const auto passing = gate_of(same_machine);
    int64_t identical = 0;
    for (const auto& p : points_) {
      const auto verdict = verdict_named(p["verdict"]);
      worst = std::max(worst, verdict);
      identical += verdict == Verdict::identical;
      if (bad.is_null() && verdict > passing) bad = p;
    }
    const auto all = std::max(worst, verdict_named(provenance_["verdict"]));
    const bool passes = bad.is_null() && provenance_["verdict"] == "identical" && !points_.empty();
    const auto& manifest = golden_->manifest();
    json why = nullptr;
    if (!same_machine) {
      why = fmt::format(
          "recorded with torch {} on {}, replayed with torch {} on {}: bits may differ by right, and both "
          "sides are judged by the local check against float64",
          text_of(manifest, "torch"), text_of(manifest, "cpu_capability"), TORCH_VERSION, at::get_cpu_capability());
    }
    const auto& mechanisms = mirror_->model().mechanisms();
    return {{"format_version", 1},
            {"command", "verify"},
            {"verdict", name(points_.empty() ? Verdict::missing : all)},
            {"model",
             {{"family", mirror_->family().name}, {"layer_types", mechanisms.layer_types}, {"digest", model_digest_}}},
            {"pedigree",
             {{"golden", manifest.value("producer", json())},
              {"transformers", text_of(manifest, "transformers")},
              {"torch", text_of(manifest, "torch")},
              {"cpu_capability", text_of(manifest, "cpu_capability")},
              {"threads", manifest.value("threads", json())},
              {"attn", golden_->attn()},
              {"dtype", golden_->dtype()},
              {"variant", golden_->variant()},
              {"failed", json::array()},
              {"checks", json::array()}}},
            {"seconds", seconds_},
            {"exit_code", passes ? 0 : 1},
            {"options",
             {{"atol", gate().atol},
              {"rtol", gate().rtol},
              {"passes", name(passing)},
              {"bitwise", options_.bitwise},
              {"accept", options_.accept_rounding ? json("rounding") : json()}}},
            {"here", {{"torch", TORCH_VERSION}, {"cpu_capability", at::get_cpu_capability()}}},
            {"why", why},
            {"legs",
             {{"provenance", provenance_},
              {"lockstep", {{"verdict", name(worst)}, {"points", points_.size()}, {"identical", identical}}},
              {"coverage", coverage_}}},
            {"first", bad},
            {"points", points_},
            {"logits", logits_},
            {"not_compared", not_compared_}};
  }

  const std::string folder_;
  const std::shared_ptr<const Trace> golden_;
  const ReplayOptions& options_;
  const Threads threads_;
  std::unique_ptr<Mirror> mirror_;
  std::map<std::string, std::shared_ptr<Cache>> caches_;
  json provenance_, coverage_, points_ = json::array(), logits_ = json::array(), not_compared_ = json::array();
  json seconds_ = json::object();
  std::string model_digest_;
};

/// The decoder layer of a point, or the module outside of the layers.
std::string group_of(const std::string& point) {
  static const std::regex layer(R"(model\.layers\.\d+)");
  std::smatch found;
  if (std::regex_search(point, found, layer, std::regex_constants::match_continuous)) return found.str();
  const auto end = std::min(point.find('@'), point.rfind('.'));
  return point.rfind("lm_head", 0) == 0 ? "logits" : point.substr(0, end);
}

/// SHA-256 over the manifest's text with zeros in place of its own digest.
std::string digest_of_manifest(const Trace& trace) {
  auto text = trace.file()->metadata().at("lockstep");
  const std::string digest = trace.manifest()["golden"]["digest"];
  const auto at = text.find("\"" + digest + "\"");
  if (digest.size() != 64 || at == std::string::npos) return "";
  text.replace(at + 1, digest.size(), std::string(digest.size(), '0'));
  Sha256 sha;
  sha.update(text);
  return sha.hex();
}

std::string counted(const json& list) {
  return fmt::format("{}", fmt::join(list.get<std::vector<std::string>>(), ", "));
}

/// `model.layers.7.mlp.output (len65): deviates; worst |diff| 3.1e-04 at [0, 5, 113]`
std::string sentence(const json& p) {
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

}  // namespace

std::shared_ptr<const Trace> open_golden(const std::string& path) {
  auto trace = std::make_shared<Trace>(Trace::open(path));
  const auto& m = trace->manifest();
  const auto refuse = [&](const char* what) -> void {
    throw LoadError(
        fmt::format("{}: not a golden trace: {}; record one with `lockstep trace MODEL --golden`", path, what));
  };
  const auto golden = m.find("golden");
  if (golden == m.end() || !golden->is_object()) refuse("its manifest has no object \"golden\"");
  const auto row = golden->find("len130");
  if (row == golden->end() || !row->is_array() || row->size() != 130 ||
      !std::all_of(row->begin(), row->end(), [](const json& id) {
        return id.is_number_unsigned() && id.get<uint64_t>() < (uint64_t{1} << 31);
      })) {
    refuse("its manifest's /golden/len130 is not a list of 130 ids");
  }
  const auto model = m.find("model");
  if (model == m.end() || !model->is_object() || !model->contains("tensors") || !(*model)["tensors"].is_object() ||
      (*model)["tensors"].empty()) {
    refuse("its manifest has no digest per tensor under /model/tensors");
  }
  for (const auto& [_, digest] : (*model)["tensors"].items()) {
    if (!digest.is_string()) refuse("a digest under /model/tensors is no text");
  }
  if (!run_dtype(trace->dtype())) refuse("it was not run in float32, bfloat16 or float16");
  const auto digest = golden->find("digest"), tensors = golden->find("tensors");
  if (digest == golden->end() || !digest->is_string() || tensors == golden->end() || !tensors->is_object()) {
    refuse("its manifest has no digests under /golden");
  }
  for (const auto& [_, recorded] : tensors->items()) {
    if (!recorded.is_string()) refuse("a digest under /golden/tensors is no text");
  }
  const auto attn = m.find("attn"), threads = m.find("threads");
  if (attn == m.end() || (*attn != "sdpa" && *attn != "eager"))
    refuse("its manifest's /attn is neither sdpa nor eager");
  if (threads == m.end() || !threads->is_number_unsigned()) refuse("its manifest's /threads is not a whole number");
  for (const char* key : {"torch", "transformers", "cpu_capability"}) {
    if (text_of(m, key).empty()) refuse("its manifest does not say torch, transformers and cpu_capability");
  }
  if (!trace->file()->canonical() || digest_of_manifest(*trace) != *digest) {
    throw LoadError(fmt::format("{}: its manifest was altered since it was recorded; get the file again", path));
  }
  const auto& points = trace->points();
  if (std::none_of(points.begin(), points.end(), [](const auto& p) { return level_of(p) == Level::sublayer; })) {
    refuse("it has no points of sublayers");
  }
  return trace;
}

json replay(const std::string& folder, const std::shared_ptr<const Trace>& golden, const ReplayOptions& options) {
  return Replay(folder, golden, options).run();
}

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
  if (!data["first"].is_null()) lines.push_back("first " + sentence(data["first"]));
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
    if (verdict_named(p["verdict"]) > passing) cases[it->second].problem += sentence(p) + "\n";
  }
  return junit_text("lockstep verify", cases);
}

}  // namespace lockstep
