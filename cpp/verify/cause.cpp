#include "verify/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "verify/finder.h"
#include "verify/rows.h"

namespace lockstep {

namespace {

constexpr double kErrors = 8;         // a fitted number is proved over so many errors from the config's
constexpr double kNear = 4;           // and ruled out within so many
constexpr double kPartOfFloor = 0.1;  // the effect that a number must have to be seen at all
constexpr double kCollinear = 0.99;   // |cos| above which two hypotheses are one
constexpr double kLeavesAsMuch = 1.1;
constexpr double kHopeless = 0.5;
constexpr double kFar = 8;  // bounds by which a row must be off to tell by itself
constexpr int kFits = 4;

/// Ruled out by so much that more rows cannot change it.
bool hopeless(const Projection& p) {
  return p.effective_rows() >= kLeastRows && std::abs(p.alpha() - 1) > kHopeless + 8 * p.alpha_error();
}

}  // namespace

double unit_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 0x1p-7 : dtype == at::kHalf ? 0x1p-10 : dtype == at::kFloat ? 0x1p-23 : 0x1p-52;
}

bool shown_by_right_arithmetic(double alpha) { return !(std::abs(alpha) < kControl); }

Finder::Finder(LocalCheck& check, const Sublayer& s, const SideResult& side, const Trace& trace)
    : check_(check), s_(s), side_(side), trace_(trace) {
  const auto any = [&](auto&& says) { return std::any_of(side.judged.begin(), side.judged.end(), says); };
  const bool inside = any([](const Judged& j) { return j.inner && j.verdict > Verdict::rounding; });
  const bool outside = any([](const Judged& j) { return !j.inner && j.verdict > Verdict::rounding; });
  // Of the tables inv_freq alone would be one row an input: there the tables' own rows tell more.
  const bool inner = any([](const Judged& j) { return j.inner && !is_state(j.point); });
  inner_ = inner && (inside || !outside) && s.kind != Kind::rotary;
  for (const auto& j : side.judged) {
    auto* const e = evaluation(j.forward);
    // Where inner values are there, each is judged by itself; what follows from the inputs alone is theirs again.
    if (!e || j.inner != inner_ || j.verdict > Verdict::deviates) continue;
    const auto& truths = j.inner ? e->forced_truth : e->truth;
    const auto t = rows_of(j.point, truths.at.at(j.point), *e->forward, e->layout.variant);
    const auto recorded = inner_as(trace_.tensor(j.forward, j.point), truths.at.at(j.point));
    const auto c = rows_of(j.point, recorded, *e->forward, e->layout.variant);
    const auto keep = t.attended & (t.values.square().sum(1) > 0);
    if (!keep.any().item<bool>()) continue;
    const auto& runs = j.inner ? e->forced_run : e->run;
    const auto r = rows_of(j.point, runs.at.at(j.point), *e->forward, e->layout.variant);
    pool_.push_back(
        {e, j.point, j.inner, c.values.index({keep}), t.values.index({keep}), r.values.index({keep}), keep, j.floor});
  }
  for (const auto& p : pool_) floor_ = std::max(floor_, p.floor);
}

Tried Finder::attempt(const Hypothesis& h) {
  Tried t;
  t.hypothesis = &h, t.label = h.name, t.fault_class = h.fault_class, t.parameter = h.parameter;
  const auto change = h.change();
  if (change.weights && !check_.truth().changes(change.weights)) return t;  // the same function, as a Tried begins
  if (h.first_try) {
    fit(h, t);
  } else {
    const bool rounding = project(h, std::nullopt, t.projection);
    settle(t, rounding);
  }
  return t;
}

Evaluation* Finder::evaluation(const std::string& forward) const {
  for (const auto& e : side_.evaluations) {
    if (e->forward->name == forward) return e.get();
  }
  return nullptr;
}

bool Finder::seen_in_index_order(const Tried& t) {
  const auto alpha = t.projection.alpha_of([&](size_t i) -> at::Tensor {
    const auto& p = pool_[i];
    check_.in_index_order(s_, *p.e);
    const auto& values = p.inner ? p.e->forced_index : p.e->index;
    const auto rows = rows_under(values, p);
    return rows.defined() ? (rows.to(at::kDouble) - p.truth) / p.truth.square().sum(1, true).sqrt() : rows;
  });
  return shown_by_right_arithmetic(alpha);
}

void Finder::read(Tried& t) const {
  t.alpha = t.projection.alpha(), t.alpha_error = t.projection.alpha_error(), t.left = t.projection.left();
}

void Finder::settle(Tried& t, bool rounding) const {
  read(t);
  const auto& p = t.projection;
  const double away = std::abs(t.alpha - 1);
  // One huge row may outweigh all others; but two rows that were far off and are rounding under the hypothesis are no
  // accident, whatever their weights.
  const bool explained = rounding && away <= 0.1 && p.rows_over(kFar * bound_of(check_.dtype()) * accepted_) >= 2;
  if (p.same()) {
    t.standing = Standing::same_function;
  } else if (hopeless(p)) {
    t.standing = Standing::ruled_out;
  } else if (!explained && (p.effective_rows() < kLeastRows || !(8 * t.alpha_error < 1))) {
    t.standing = Standing::not_discriminated;
  } else if (!rounding || away > std::max(0.1, 2 * t.alpha_error)) {
    t.standing = Standing::ruled_out;
  } else {
    t.standing = shown_by_right_arithmetic(p.control()) ? Standing::not_discriminated : Standing::proved;
  }
}

Values Finder::under(const Change& change, bool table, const Evaluation& e, Order order,
                     std::map<std::string, LayerCache>& left) {
  const bool exact = order == Order::plain;
  auto& evaluator = exact ? check_.truth() : check_.run();
  const Changed arithmetic(change, "", exact ? at::kDouble : at::kFloat, order);
  auto given = e.given;
  const auto& past = e.forward->past;
  if (const auto it = left.find(past); it != left.end() && !shows_states(past)) given.past = it->second;
  if (change.given) change.given(given);
  auto context = exact ? check_.truth_context(e.trace, e.forward->name) : check_.run_context(e.trace, e.forward->name);
  if (table) {
    context = evaluator.context(*e.forward, given.past_tokens, given.cached, e.layout, arithmetic);
  }
  auto values = inner_ ? Values(*e.trace, e.forward->name) : Values();
  auto run = [&] {
    evaluator.run(s_, *e.forward, given, context, e.layout, arithmetic, values, &left[e.forward->name]);
  };
  if (change.weights) {
    evaluator.edited(change.weights, run);
  } else {
    run();
  }
  ++check_.cost().hypotheses;
  return values;
}

bool Finder::shows_states(const std::string& forward) const {
  return trace_.promised(forward, s_.path + (s_.kind == Kind::self_attn ? "@key_cache" : "@recurrent_state"));
}

at::Tensor Finder::rows_under(const Values& values, const Pooled& p) const {
  const auto it = values.at.find(p.point);
  if (it == values.at.end()) return {};
  const auto rows = rows_of(p.point, it->second, *p.e->forward, p.e->layout.variant).values;
  if (rows.size(0) != p.keep.size(0) || rows.size(1) != p.truth.size(1)) return {};
  return rows.index({p.keep});
}

bool Finder::project(const Hypothesis& h, std::optional<double> value, Projection& out) {
  auto change = h.change();
  if (value) change.value = value;
  const bool table = s_.kind == Kind::self_attn && h.applies(Kind::rotary);
  const double bound = bound_of(check_.dtype());
  std::map<std::string, LayerCache> left;
  std::vector<at::Tensor> kept(pool_.size());  // t_h
  std::vector<size_t> off;                     // where the candidate is not within the bound of t_h
  for (const auto& e : side_.evaluations) {
    if (table && e->given.cos.defined() && e->given.sin.defined()) continue;  // it brought its own tables
    const auto values = under(change, table, *e, Order::plain, left);
    for (size_t i = 0; i < pool_.size(); ++i) {
      const auto& p = pool_[i];
      if (p.e != e.get()) continue;
      kept[i] = rows_under(values, p);
      if (!kept[i].defined()) continue;
      out.add(p.candidate, p.truth, kept[i], p.run, i);
      if (!(row_errors(p.candidate, kept[i]) <= bound * p.floor).all().item<bool>()) off.push_back(i);
    }
    // The cause has alpha = 1 on any of the inputs: what is far from it on the first ones need not see the others.
    if ((!value || h.fixed) && !off.empty() && hopeless(out)) return false;
  }
  accepted_ = floor_;
  if (off.empty()) return true;
  if (out.same() || !(std::abs(out.alpha() - 1) <= std::max(0.1, 2 * out.alpha_error()))) return false;
  // Another function loses otherwise: larger scores, a state that never decays, a further rounding that falls on the
  // other side of a tie. The floor against t_h is made as any floor: the worst of all inputs, of a run in HF's order,
  // and where that does not suffice of one in index order; here both under the same hypothesis.
  std::map<std::string, double> floors;  // by point
  for (const auto order : {Order::hf, Order::index}) {
    raise_floors(change, table, order, kept, floors);
    const bool within = std::all_of(off.begin(), off.end(), [&](size_t i) {
      const auto floor = floors.find(pool_[i].point);
      return floor != floors.end() &&
             (row_errors(pool_[i].candidate, kept[i]) <= bound * std::max(pool_[i].floor, floor->second))
                 .all()
                 .item<bool>();
    });
    if (!within) continue;
    for (const auto i : off) accepted_ = std::max(accepted_, floors.at(pool_[i].point));
    return true;
  }
  return false;
}

void Finder::raise_floors(const Change& change, bool table, Order order, const std::vector<at::Tensor>& kept,
                          std::map<std::string, double>& floors) {
  std::map<std::string, LayerCache> left;
  for (const auto& e : side_.evaluations) {
    if (table && e->given.cos.defined() && e->given.sin.defined()) continue;
    const auto run = under(change, table, *e, order, left);
    for (size_t i = 0; i < pool_.size(); ++i) {
      if (pool_[i].e != e.get() || !kept[i].defined()) continue;
      const auto rows = rows_under(run, pool_[i]);
      if (!rows.defined()) continue;
      const double lost = row_errors(rows, kept[i]).max().item<double>();
      auto& floor = floors[pool_[i].point];
      if (std::isfinite(lost)) floor = std::max(floor, lost);
    }
  }
}

double Finder::config_of(const Hypothesis& h) {
  Changed arithmetic(h.change(), "", at::kDouble, Order::plain);
  const auto& e = *side_.evaluations.front();
  const auto context = check_.truth().context(*e.forward, e.given.past_tokens, e.given.cached, e.layout, arithmetic);
  if (s_.kind != Kind::rotary) {
    Values values;
    check_.truth().run(s_, *e.forward, e.given, context, e.layout, arithmetic, values);
  }
  return arithmetic.config().value_or(std::nan(""));
}

void Finder::fit(const Hypothesis& h, Tried& t) {
  const double config = config_of(h);
  if (std::isnan(config)) return;  // no such number here
  t.config = config;
  double value = h.first_try(config);
  if (value == config) return;  // the hypothesis is what the config says
  bool rounding = false;
  double before = config;
  Projection last;
  for (int i = 0; i <= (h.fixed ? 0 : kFits); ++i) {
    t.projection = Projection();
    rounding = project(h, value, t.projection);
    read(t);
    t.estimate = config + t.alpha * (value - config);
    t.estimate_error = t.alpha_error * std::abs(value - config);
    if (h.fixed || i == kFits || t.projection.same() || !std::isfinite(t.estimate)) break;
    if (std::abs(t.alpha - 1) < 0.1 && rounding) break;
    if (std::abs(t.estimate - config) < kNear * t.estimate_error) break;  // it is the config's: no use going there
    const double next = std::max(0.0, value + t.projection.further(last) * (value - before));
    if (next == value) break;
    before = value, value = next;
    last = std::move(t.projection);
  }
  t.has_estimate = true;
  if (h.fixed) {
    settle(t, rounding);
    return;
  }
  if (t.projection.same()) return;
  const double away = std::abs(t.estimate - config);
  const bool seen = t.projection.effect() * std::min(1.0, std::abs(t.alpha)) >= kPartOfFloor * floor_;
  const bool at_estimate = std::abs(t.alpha - 1) < 0.1;
  // Engines hold such numbers in float32 at least, whatever the run's dtype.
  const bool held =
      away <= kUnits * unit_of(check_.dtype() == at::kDouble ? at::kDouble : at::kFloat) * std::abs(config);
  if (t.projection.effective_rows() < kLeastRows || !std::isfinite(t.alpha_error)) {
    t.standing = Standing::not_discriminated;
  } else if (!held && away > kErrors * t.estimate_error && seen && at_estimate && rounding) {
    t.standing = shown_by_right_arithmetic(t.projection.control()) ? Standing::not_discriminated : Standing::proved;
  } else if (held || away <= kNear * t.estimate_error) {
    // The config's value is possible; how far another could be says whether this input could have told.
    const double reach = kErrors * t.estimate_error / std::max(config, 1e-300);
    t.standing = reach < 1 ? Standing::ruled_out : Standing::not_discriminated;
  } else {
    // Nor could it tell where the hypothesis fits, but a number so near to the config's is not proved.
    const bool fits = rounding && std::abs(t.alpha - 1) <= std::max(0.1, 2 * t.alpha_error);
    t.standing = fits || (at_estimate && !seen) ? Standing::not_discriminated : Standing::ruled_out;
  }
}

const char* name(Standing standing) {
  switch (standing) {
    case Standing::proved:
      return "proved";
    case Standing::ruled_out:
      return "ruled_out";
    case Standing::not_discriminated:
      return "not_discriminated";
    default:
      return "same_function";
  }
}

nlohmann::json Causes::json() const {
  if (!best) return nullptr;
  auto number = [](double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(nullptr); };
  const auto& t = *best;
  return {{"hypothesis", t.label},
          {"class", t.fault_class == FaultClass::formula ? "formula" : "precision"},
          {"alpha", number(t.alpha)},
          {"alpha_error", number(t.alpha_error)},
          {"parameter", t.parameter.empty() ? nlohmann::json(nullptr) : nlohmann::json(t.parameter)},
          {"index", t.index.empty() ? nlohmann::json(nullptr) : nlohmann::json(t.index)},
          {"config", t.has_estimate && t.index.empty() ? number(t.config) : nlohmann::json(nullptr)},
          {"estimate", t.has_estimate ? number(t.estimate) : nlohmann::json(nullptr)},
          {"estimate_error", t.has_estimate ? number(t.estimate_error) : nlohmann::json(nullptr)},
          {"also", also}};
}

void find_causes(LocalCheck& check, const Sublayer& s, const SideResult& side, const Trace& trace,
                 const std::set<std::string>& without, Causes& causes) {
  Finder finder(check, s, side, trace);
  if (finder.empty()) return;
  auto add = [&](Tried t) {
    if (t.standing == Standing::proved && finder.seen_in_index_order(t)) t.standing = Standing::not_discriminated;
    causes.tried.push_back(std::move(t));
  };
  for (const auto& h : hypotheses()) {
    if (!h.applies(s.kind) || without.count(h.name)) continue;
    // A run in half precision rounds its weights and tables by itself.
    if (h.fault_class == FaultClass::precision && check.dtype() != at::kFloat) continue;
    add(finder.attempt(h));
    auto& t = causes.tried.back();
    if (t.standing != Standing::proved) t.projection = Projection();  // its rows are not needed any more
  }
  if (!without.count("one weight")) {
    if (auto weight = finder.single_weight()) add(std::move(*weight));
  }
  for (const auto& t : causes.tried) {
    if (t.standing == Standing::proved && (!causes.best || t.left < causes.best->left)) causes.best = &t;
  }
  for (const auto& t : causes.tried) {
    if (!causes.best || t.standing != Standing::proved || &t == causes.best) continue;
    if (t.left <= kLeavesAsMuch * causes.best->left ||
        Projection::collinearity(t.projection, causes.best->projection) > kCollinear)
      causes.also.push_back(t.label);
  }
}

}  // namespace lockstep
