#include "verify/bisect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/tensor_text.h"
#include "verify/cause.h"
#include "verify/remarks.h"

namespace lockstep {

using nlohmann::json;

namespace {

json number(double x) { return std::isfinite(x) ? json(x) : json(nullptr); }

/// Worse first: a point that could not even be measured, then by the multiple of the floor.
bool worse(const Judged& a, const Judged& b) {
  const bool unmeasured_a = a.verdict > Verdict::deviates, unmeasured_b = b.verdict > Verdict::deviates;
  if (unmeasured_a != unmeasured_b) return unmeasured_a;
  return a.ratio() > b.ratio();
}

const Judged* worst_of(const SideResult& side, const std::function<bool(const Judged&)>& counts) {
  const Judged* worst = nullptr;
  for (const auto& j : side.judged) {
    if (counts(j) && (!worst || !worse(*worst, j))) worst = &j;  // of equals the last: it has seen more positions
  }
  return worst;
}

std::string relative_name(const Sublayer& s, const std::string& point) { return point.substr(s.path.size() + 1); }

class Bisection {
 public:
  Bisection(const std::string& folder, std::shared_ptr<const Trace> reference, std::shared_ptr<const Trace> candidate,
            const BisectOptions& options)
      : options_(options), check_(folder, options.dtype, options.attn, options.len130) {
    if (reference) add("reference", std::move(reference));
    add("candidate", std::move(candidate));
  }

  json run() {
    const auto& all = check_.sublayers();
    for (size_t i = 0; i < all.size(); ++i) {
      if (!wanted(all[i].path)) continue;
      if (options_.progress)
        options_.progress(fmt::format("local check: {} ({} of {})", all[i].path, i + 1, all.size()));
      sublayer(all[i]);
    }
    const auto& c = check_.cost();
    json power = json::object();
    for (const auto& [hypothesis, standings] : power_) power[hypothesis] = standings;
    json not_compared = json::array(), extra = json::array();
    const auto& candidate = *traces_.back().second;
    std::set<std::string> judged;
    for (const auto& name : judged_) judged.insert(name);
    for (const auto& f : candidate.forwards()) {
      for (const auto& point : candidate.points()) {
        if (candidate.promised(f.name, point) && !judged.count(f.name + "/" + point) && !ends_in_input(point))
          not_compared.push_back(f.name + "/" + point);
      }
    }
    for (const auto& name : candidate.unpromised()) extra.push_back(name);
    return {{"drift", drift_},
            {"faults", faults_},
            {"notes", notes_},
            {"power", power},
            {"projections", projections_},
            {"points", points_},
            {"judged", judged_.size()},
            {"not_compared", not_compared},
            {"extra", extra},
            {"skipped_rows", skipped_},
            {"nan_rows", nan_rows_},
            {"cost",
             {{"inputs", candidate.forwards().size()},
              {"sublayers", all.size()},
              {"sides", traces_.size()},
              {"truth", c.truth},
              {"floor", c.floor},
              {"values", c.values},
              {"shared", c.shared},
              {"index_order", c.index},
              {"hypotheses", c.hypotheses},
              {"len130", c.len130}}}};
  }

 private:
  void add(const std::string& name, std::shared_ptr<const Trace> trace) {
    check_.add_side(name, trace);
    traces_.emplace_back(name, std::move(trace));
  }

  bool wanted(const std::string& path) const {
    return options_.only.empty() || std::any_of(options_.only.begin(), options_.only.end(), [&](const auto& part) {
             return path == part || path.compare(0, part.size() + 1, part + ".") == 0;
           });
  }

  static bool ends_in_input(const std::string& point) {
    return point.size() > 6 && point.compare(point.size() - 6, 6, ".input") == 0;
  }

  void sublayer(const Sublayer& s) {
    auto results = check_.judge(s);
    const bool suspect = std::any_of(results.begin(), results.end(), [](const auto& r) { return r.faulty(); });
    if (suspect || options_.values) check_.look_inside(s, results);
    const bool one = results.size() == 2 && same_recordings(results);  // then so are the causes
    std::shared_ptr<Causes> causes;
    for (size_t i = 0; i < results.size(); ++i) {
      const auto& trace = *traces_[i].second;
      const auto& side = results[i];
      for (const auto& j : side.judged) {
        if (side.side == "candidate") judged_.push_back(j.forward + "/" + j.point), skipped_ += j.skipped;
        nan_rows_ += j.inherited_nan;
        if (options_.points) {
          points_.push_back({{"side", side.side},
                             {"point", j.point},
                             {"input", j.forward},
                             {"inner", j.inner},
                             {"verdict", name(j.verdict)},
                             {"error", number(j.error)},
                             {"floor", number(j.floor)},
                             {"ratio", number(j.ratio())}});
        }
      }
      const auto said = std::find_if(side.judged.begin(), side.judged.end(),
                                     [](const Judged& j) { return !j.note.empty() && j.verdict <= Verdict::rounding; });
      if (said != side.judged.end()) {
        notes_.push_back({{"point", s.path},
                          {"side", side.side},
                          {"input", said->forward},
                          {"hypothesis", nullptr},
                          {"text", said->note}});
      }
      const bool faulty = side.faulty();
      if (!causes || !one) causes = std::make_shared<Causes>();
      if (options_.causes && (faulty || options_.thorough)) {
        if (causes->tried.empty()) find_causes(check_, s, side, trace, options_.without, *causes);
        if (options_.thorough && side.side == "candidate") note_power(s, *causes);
      }
      if (faulty || (causes->best && causes->best->fault_class == FaultClass::formula)) {
        faults_.push_back(fault(s, side, trace, *causes));
      } else if (causes->best) {
        json note = causes->json();
        note["point"] = s.path, note["side"] = side.side;
        notes_.push_back(note);
      }
    }
    drift_.push_back(drift(s, results));
  }

  /// Do both sides hold the same bits at every judged point of this sublayer?
  bool same_recordings(const std::vector<SideResult>& results) const {
    const auto &a = results[0], &b = results[1];
    if (a.judged.size() != b.judged.size()) return false;
    for (size_t i = 0; i < a.judged.size(); ++i) {
      const auto& j = a.judged[i];
      if (j.point != b.judged[i].point || j.forward != b.judged[i].forward) return false;
      const auto x = traces_[0].second->tensor(j.forward, j.point), y = traces_[1].second->tensor(j.forward, j.point);
      if (!x.defined() || !y.defined() || x.sizes() != y.sizes() || x.scalar_type() != y.scalar_type() ||
          !same_bits(x, y))
        return false;
    }
    return true;
  }

  void note_power(const Sublayer& s, const Causes& causes) {
    for (const auto& t : causes.tried) {
      power_[t.label][name(t.standing)].push_back(s.path);
      if (t.standing == Standing::same_function) continue;
      projections_.push_back({{"point", s.path},
                              {"hypothesis", t.label},
                              {"standing", name(t.standing)},
                              {"alpha", number(t.alpha)},
                              {"alpha_error", number(t.alpha_error)}});
    }
  }

  json drift(const Sublayer& s, const std::vector<SideResult>& results) {
    const auto& candidate = results.back();
    const auto* worst = worst_of(candidate, [](const Judged& j) { return !j.inner; });
    json entry{
        {"point", s.path}, {"input", nullptr}, {"inherited", nullptr}, {"injected", nullptr}, {"floor", nullptr}};
    if (!worst) return entry;
    entry["input"] = worst->forward;
    if (worst->verdict <= Verdict::deviates) {
      entry["injected"] = number(worst->error), entry["floor"] = number(worst->floor);
    }
    if (results.size() == 2) entry["inherited"] = inherited(results.front(), candidate, worst->forward);
    return entry;
  }

  /// Relative L2 of the candidate's input from the reference's.
  static json inherited(const SideResult& reference, const SideResult& candidate, const std::string& forward) {
    auto input = [&](const SideResult& side) -> at::Tensor {
      for (const auto& e : side.evaluations) {
        if (e->forward->name != forward) continue;
        return e->given.x.defined() ? e->given.x : e->given.terms.empty() ? at::Tensor() : e->given.terms.front();
      }
      return {};
    };
    const auto r = input(reference), c = input(candidate);
    if (!r.defined() || !c.defined() || r.sizes() != c.sizes()) return nullptr;
    const auto away = (c.to(at::kDouble) - r.to(at::kDouble)).norm().item<double>();
    const auto size = r.to(at::kDouble).norm().item<double>();
    return number(size > 0 ? away / size : away);
  }

  json fault(const Sublayer& s, const SideResult& side, const Trace& trace, const Causes& causes) {
    auto bad = [](const Judged& j) { return j.verdict > Verdict::rounding; };
    const auto* worst = worst_of(side, bad);
    const bool below = !worst;  // proved by projection alone
    if (below) worst = worst_of(side, [](const Judged&) { return true; });
    const Judged* first = worst;
    for (const auto& j : side.judged) {
      if (bad(j)) {
        first = &j;
        break;
      }
    }
    // The first bad value inside, in execution order, of the first input that shows one.
    json value = nullptr;
    for (const bool inner : {true, false}) {
      for (const auto& j : side.judged) {
        if (!value.is_null() || !bad(j) || j.inner != inner) continue;
        if (inner || j.point != s.path + ".output") value = relative_name(s, j.point);
      }
    }
    json entry{{"point", s.path},
               {"side", side.side},
               {"verdict", below ? "deviates" : name(worst->verdict)},
               {"input", worst->forward},
               {"first_input", first->forward},
               {"value", value},
               {"operation", nullptr},
               {"source", nullptr},
               {"cause", causes.json()},
               {"ratio", worst->verdict > Verdict::deviates ? json(nullptr) : number(worst->ratio())},
               {"error", number(worst->error)},
               {"floor", number(worst->floor)},
               {"row", worst->row},
               {"note", worst->note.empty() ? json(nullptr) : json(worst->note)},
               {"remark", below ? json(nullptr) : remark(s, side, trace, *worst)}};
    return entry;
  }

  const BisectOptions& options_;
  LocalCheck check_;
  std::vector<std::pair<std::string, std::shared_ptr<const Trace>>> traces_;
  json drift_ = json::array(), faults_ = json::array(), notes_ = json::array(), projections_ = json::array();
  std::map<std::string, std::map<std::string, std::vector<std::string>>> power_;
  json points_ = json::array();
  std::vector<std::string> judged_;
  int64_t skipped_ = 0, nan_rows_ = 0;
};

}  // namespace

json bisect(const std::string& folder, std::shared_ptr<const Trace> reference, std::shared_ptr<const Trace> candidate,
            const BisectOptions& options) {
  return Bisection(folder, std::move(reference), std::move(candidate), options).run();
}

}  // namespace lockstep
