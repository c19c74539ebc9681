#include "verify/replay.h"

#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <set>

#include "core/error.h"
#include "core/sha256.h"
#include "core/tensor_text.h"
#include "models/mirror.h"
#include "nn/aligned.h"
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

/// 2.13.0+cpu -> 2.13.0: the wheels for other devices hold the same code for the CPU.
std::string release_of(const std::string& version) { return version.substr(0, version.find('+')); }

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
      : folder_(folder), golden_(std::move(golden)), options_(options), threads_(*golden_) {}

  ~Replay() { given_up_ = true; }  // after an error or Ctrl-C nobody waits for what is left of the digests

  json run() {
    const auto start = std::chrono::steady_clock::now();
    say("opening " + folder_);
    mirror_ = Mirror::open(folder_);
    try {
      check_forwards();
    } catch (const InputError& error) {
      other_model(error);
      throw;
    }
    digesting_ = std::async(std::launch::async, [this] { return digests(); });
    const auto dtype = *run_dtype(golden_->dtype());
    if (options_.stream) {
      mirror_->stream(dtype);
    } else {
      mirror_->bind(dtype);
      if (options_.converted) lay_apart();
    }
    seconds_["load"] = seconds_since(start);
    forwards();
    provenance();
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

  /// Where a forward does not fit the model, it may be another model than the trace's: that is said first.
  void other_model(const InputError& error) const {
    const auto own = options_.digests ? *options_.digests : mirror_->checkpoint().digests(&given_up_);
    const auto& stated = golden_->manifest()["model"]["tensors"];
    const auto differs = [&](const auto& t) {
      return !options_.left_out.count(t.first) && (!own.count(t.first) || own.at(t.first) != t.second);
    };
    const std::map<std::string, json> tensors = stated;
    const auto count = std::count_if(tensors.begin(), tensors.end(), differs);
    if (!count) return;
    throw InputError(fmt::format(
        "{}: not the checkpoint that the trace was recorded from: {} of its {} tensors are other ones, first "
        "{}; {}",
        folder_, count, tensors.size(), std::find_if(tensors.begin(), tensors.end(), differs)->first, error.what()));
  }

  /// A converted export is run in what its source was cast to: where the recording had casts, in memory of their own,
  /// it has views of its file, and where a weight lies is seen in the bits of a product (see aligned()).
  void lay_apart() {
    std::map<const void*, at::Tensor> copies;  // a tied head stays the embedding
    for (const auto* p : mirror_->parameters()) {
      auto& copy = copies[p->value.const_data_ptr()];
      if (!copy.defined()) copy = aligned(p->value);
      mirror_->share(p->name, copy);
    }
  }

  struct Digests {
    std::map<std::string, std::string> model, recordings;
  };

  /// Of every tensor of the model and of the trace. They are made while the forwards run, in what the processor has to
  /// spare: whoever works beside them goes first.
  Digests digests() const {
    setpriority(PRIO_PROCESS, 0, 19);  // on Linux of this thread alone, and of those that it starts
    Digests found;
    found.model = mirror_->checkpoint().digests(&given_up_);
    const auto& file = *golden_->file();
    std::vector<std::pair<const void*, size_t>> ranges;
    for (const auto& [name, info] : file.tensors()) ranges.emplace_back(file.bytes(info), info.end - info.begin);
    const auto hex = sha256_each(ranges, &given_up_);
    size_t i = 0;
    for (const auto& [name, info] : file.tensors()) found.recordings[name] = hex[i++];
    return found;
  }

  void provenance() {
    const auto start = std::chrono::steady_clock::now();
    say("provenance: the digest of every tensor");
    const auto [own, recorded] = digesting_.get();
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
    recordings(recorded, differ);
    provenance_ = {{"verdict", name(differing.empty() ? Verdict::identical : Verdict::deviates)},
                   {"differing", differing},
                   {"compared", stated.size()},
                   {"casts", json::object()}};
    seconds_["digest"] = seconds_since(start);  // what was left of it after the forwards
  }

  /// The trace's own tensors, which have a digest each as well.
  void recordings(const std::map<std::string, std::string>& found,
                  const std::function<void(const std::string&, const json&, const json&)>& differ) const {
    const auto& stated = golden_->manifest()["golden"]["tensors"];
    for (const auto& [name, digest] : found) {
      const auto it = stated.find(name);
      if (it == stated.end() || *it != digest) {
        differ("the trace's " + name, it == stated.end() ? json("absent") : *it, digest);
      }
    }
    for (const auto& [name, digest] : stated.items()) {
      if (!found.count(name)) differ("the trace's " + name, digest, "absent");
    }
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
      LockstepForward step(*mirror_, variant, attn(), level_of_points(*golden_), gate(), {f.name, inputs, cache_of(f)});
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
      Run run(variant, attn(), level_of_points(*golden_), &copies, cache.get());
      mirror_->model().forward(run, {f.ids, f.positions, f.mask});
    }
    caches_.clear();
    BisectOptions options;
    options.dtype = golden_->dtype(), options.attn = golden_->attn();
    options.causes = false, options.points = true;
    options.values = level_of_points(*golden_) == Level::all;
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
  const RecordedThreads threads_;
  std::unique_ptr<Mirror> mirror_;
  std::map<std::string, std::shared_ptr<Cache>> caches_;
  json provenance_, coverage_, points_ = json::array(), logits_ = json::array(), not_compared_ = json::array();
  json seconds_ = json::object();
  std::string model_digest_;
  std::atomic<bool> given_up_{false};
  std::future<Digests> digesting_;  // last: it is waited for before anything that it reads goes
};

}  // namespace

json replay(const std::string& folder, const std::shared_ptr<const Trace>& golden, const ReplayOptions& options) {
  return Replay(folder, golden, options).run();
}

}  // namespace lockstep
