#include "verify/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "verify/rows.h"

namespace lockstep {

namespace {

constexpr double kErrors = 8;         // a fitted number is proved over so many errors from the config's
constexpr double kNear = 4;           // and ruled out within so many
constexpr double kLeastRows = 8;      // effective rows of a projection
constexpr double kPartOfFloor = 0.1;  // the effect that a number must have to be seen at all
constexpr double kCollinear = 0.99;   // |cos| above which two hypotheses are one
constexpr double kLeavesAsMuch = 1.1;
constexpr double kControl = 0.25;  // part of an estimate that right arithmetic may show by itself
constexpr int kFits = 4;
constexpr double kWeightZ = 8;            // of a single weight, against the median output's error
constexpr int64_t kLargestMap = 1 << 27;  // elements of a map whose error is regressed

/// One point of one forward: candidate, truth, and what a hypothesis makes of it.
struct Pooled {
  const Evaluation* e;
  std::string point;
  bool inner;
  at::Tensor candidate, truth, run;  // [R, n], attended rows of a nonzero truth; run: right arithmetic in the dtype
  at::Tensor keep;
  double floor;
};

class Finder {
 public:
  Finder(LocalCheck& check, const Sublayer& s, const SideResult& side, const Trace& trace)
      : check_(check), s_(s), side_(side), trace_(trace) {
    const auto any = [&](auto&& says) { return std::any_of(side.judged.begin(), side.judged.end(), says); };
    const bool inside = any([](const Judged& j) { return j.inner && j.verdict > Verdict::rounding; });
    const bool outside = any([](const Judged& j) { return !j.inner && j.verdict > Verdict::rounding; });
    // Of the tables inv_freq alone would be one row an input: there the tables' own rows tell more.
    const bool inner = any([](const Judged& j) { return j.inner && !is_state(j.point); });
    inner_ = inner && (inside || !outside) && s.kind != Kind::rotary;
    for (const auto& j : side.judged) {
      const auto* e = evaluation(j.forward);
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

  bool empty() const { return pool_.empty(); }

  Tried attempt(const Hypothesis& h) {
    Tried t;
    t.hypothesis = &h, t.label = h.name, t.fault_class = h.fault_class, t.parameter = h.parameter;
    if (h.first_try) {
      fit(h, t);
    } else {
      const bool rounding = project(h, std::nullopt, t.projection);
      settle(t, rounding);
    }
    return t;
  }

  /// The strongest single weight of the sublayer's linear maps.
  std::optional<Tried> single_weight();

 private:
  const Evaluation* evaluation(const std::string& forward) const {
    for (const auto& e : side_.evaluations) {
      if (e->forward->name == forward) return e.get();
    }
    return nullptr;
  }

  void read(Tried& t) const {
    t.alpha = t.projection.alpha(), t.alpha_error = t.projection.alpha_error(), t.left = t.projection.left();
  }

  void settle(Tried& t, bool rounding) const {
    read(t);
    if (t.projection.same()) {
      t.standing = Standing::same_function;
    } else if (t.projection.effective_rows() < kLeastRows || !(8 * t.alpha_error < 1)) {
      t.standing = Standing::not_discriminated;
    } else {
      const bool near = std::abs(t.alpha - 1) <= std::max(0.1, 2 * t.alpha_error);
      t.standing =
          near && rounding && std::abs(t.projection.control()) < kControl ? Standing::proved : Standing::ruled_out;
    }
  }

  /// One evaluation under a change: by the truth's arithmetic, or as a run in the sides' dtype would compute it.
  /// `left` holds the states that earlier forwards leave under the change: what follows them begins there, unless the
  /// candidate shows states of its own.
  Values under(const Change& change, bool table, const Evaluation& e, bool exact,
               std::map<std::string, LayerCache>& left) {
    auto& evaluator = exact ? check_.truth() : check_.run();
    const Changed arithmetic(change, "", exact ? at::kDouble : at::kFloat, exact ? Order::plain : Order::hf);
    auto given = e.given;
    const auto& past = e.forward->past;
    if (const auto it = left.find(past); it != left.end() && !shows_states(past)) given.past = it->second;
    if (change.given) change.given(given);
    auto context =
        exact ? check_.truth_context(e.trace, e.forward->name) : check_.run_context(e.trace, e.forward->name);
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

  bool shows_states(const std::string& forward) const {
    return trace_.promised(forward, s_.path + (s_.kind == Kind::self_attn ? "@key_cache" : "@recurrent_state"));
  }

  at::Tensor rows_under(const Values& values, const Pooled& p) const {
    const auto it = values.at.find(p.point);
    if (it == values.at.end()) return {};
    const auto rows = rows_of(p.point, it->second, *p.e->forward, p.e->layout.variant).values;
    if (rows.size(0) != p.keep.size(0) || rows.size(1) != p.truth.size(1)) return {};
    return rows.index({p.keep});
  }

  /// Fills the projection; true if the candidate is within the bound of t_h everywhere.
  bool project(const Hypothesis& h, std::optional<double> value, Projection& out) {
    auto change = h.change();
    if (value) change.value = value;
    const bool table = s_.kind == Kind::self_attn && h.applies(Kind::rotary);
    const double bound = bound_of(check_.dtype());
    bool rounding = true;
    std::map<std::string, LayerCache> left, run_left;
    std::vector<std::pair<const Pooled*, at::Tensor>> off;  // where the candidate is not within the bound of t_h
    for (const auto& e : side_.evaluations) {
      if (table && e->given.cos.defined() && e->given.sin.defined()) continue;  // it brought its own tables
      const auto values = under(change, table, *e, /*exact=*/true, left);
      for (const auto& p : pool_) {
        if (p.e != e.get()) continue;
        const auto kept = rows_under(values, p);
        if (!kept.defined()) continue;
        out.add(p.candidate, p.truth, kept, p.run);
        const bool within = (row_errors(p.candidate, kept) <= bound * p.floor).all().item<bool>();
        if (!within) off.emplace_back(&p, kept);
      }
    }
    if (off.empty()) return true;
    if (!(std::abs(out.alpha() - 1) <= std::max(0.1, 2 * out.alpha_error()))) return false;
    // Another function loses otherwise: larger scores, a state that never decays, a further rounding that falls on the
    // other side of a tie. The floor against t_h is that of a run under the same hypothesis.
    std::map<const Evaluation*, Values> runs;
    for (const auto& e : side_.evaluations) runs[e.get()] = under(change, table, *e, /*exact=*/false, run_left);
    for (const auto& [p, kept] : off) {
      const auto run = rows_under(runs.at(p->e), *p);
      if (!run.defined()) return false;
      const double floor = std::max(p->floor, row_errors(run, kept).max().item<double>());
      rounding = rounding && (row_errors(p->candidate, kept) <= bound * floor).all().item<bool>();
    }
    return rounding;
  }

  /// The config's value of the hypothesis' number, by asking one evaluation for it; NaN if it is used nowhere here.
  double config_of(const Hypothesis& h) {
    Changed arithmetic(h.change(), "", at::kDouble, Order::plain);
    const auto& e = *side_.evaluations.front();
    const auto context = check_.truth().context(*e.forward, e.given.past_tokens, e.given.cached, e.layout, arithmetic);
    if (s_.kind != Kind::rotary) {
      Values values;
      check_.truth().run(s_, *e.forward, e.given, context, e.layout, arithmetic, values);
    }
    return arithmetic.config().value_or(std::nan(""));
  }

  /// A hypothesis with a number: go to the estimate until alpha is within 0.1 of 1.
  void fit(const Hypothesis& h, Tried& t) {
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
    if (t.projection.effective_rows() < kLeastRows || !std::isfinite(t.alpha_error)) {
      t.standing = Standing::not_discriminated;
    } else if (away > kErrors * t.estimate_error && seen && at_estimate && rounding &&
               std::abs(t.projection.control()) < kControl) {
      t.standing = Standing::proved;
    } else if (away <= kNear * t.estimate_error) {
      // The config's value is possible; how far another could be says whether this input could have told.
      const double reach = kErrors * t.estimate_error / std::max(config, 1e-300);
      t.standing = reach < 1 ? Standing::ruled_out : Standing::not_discriminated;
    } else {
      t.standing = at_estimate && !seen ? Standing::not_discriminated : Standing::ruled_out;
    }
  }

  LocalCheck& check_;
  const Sublayer& s_;
  const SideResult& side_;
  const Trace& trace_;
  std::vector<Pooled> pool_;
  bool inner_ = false;  // inner values are there, and each is judged by itself
  double floor_ = 0;
};

/// Each output's error regressed on each input of a map, pooled over forwards; z against the median output's error.
std::optional<Tried> Finder::single_weight() {
  std::vector<std::string> maps;  // modules with a weight [out, in] whose output is judged
  const auto last = s_.kind == Kind::mlp ? "down_proj" : s_.kind == Kind::self_attn ? "o_proj" : "out_proj";
  const bool whole = !inner_;
  if (s_.kind == Kind::head) maps = {s_.path};
  if (s_.kind == Kind::mlp || s_.kind == Kind::self_attn || s_.kind == Kind::linear_attn) {
    if (whole) maps = {s_.path + "." + last};
    for (const auto& p : pool_) {
      const auto dot = p.point.rfind(".output");
      if (whole || dot == std::string::npos) continue;
      const auto module = p.point.substr(0, dot);
      if (module == s_.path) continue;
      if (std::find(maps.begin(), maps.end(), module) == maps.end()) maps.push_back(module);
    }
    // The last map's output is the sublayer's.
    if (!whole && std::find(maps.begin(), maps.end(), s_.path + "." + last) == maps.end())
      maps.push_back(s_.path + "." + last);
  }
  std::optional<Tried> best;
  double best_z = 0;
  for (const auto& module : maps) {
    const auto parameter = module + ".weight";
    const auto& mirror = check_.truth().mirror();
    if (!mirror.has_parameter(parameter) || mirror.value(parameter).dim() != 2) continue;
    if (mirror.value(parameter).numel() > kLargestMap) continue;
    at::Tensor gram, squares, error_squares;
    int64_t rows = 0;
    for (const auto& e : side_.evaluations) {
      const auto& truths = inner_ ? e->forced_truth : e->truth;
      const auto input = module == s_.path ? s_.inputs.front() : module + ".input";
      auto y_point = module + ".output";
      if (!trace_.promised(e->forward->name, y_point)) y_point = s_.path + ".output";
      const auto t = truths.at.find(module == s_.path ? s_.path + ".output" : module + ".output");
      if (t == truths.at.end() || !trace_.promised(e->forward->name, y_point)) continue;
      auto c = trace_.tensor(e->forward->name, y_point);
      if (c.defined()) c = inner_as(c, t->second);
      if (!c.defined()) continue;
      at::Tensor x;
      if (module == s_.path) {
        x = e->given.x;
      } else if (trace_.promised(e->forward->name, input) && inner_) {
        x = trace_.tensor(e->forward->name, input);
      }
      if (!x.defined()) {
        const auto it = truths.at.find(input);
        if (it == truths.at.end()) continue;
        x = it->second;
      }
      const auto tr = rows_of(y_point, t->second, *e->forward, e->layout.variant);
      const auto keep = tr.attended & (tr.values.square().sum(1) > 0);
      const auto size = tr.values.square().sum(1, true).sqrt();
      const auto cr = rows_of(y_point, c, *e->forward, e->layout.variant).values.to(at::kDouble);
      const auto X = (x.to(at::kDouble).reshape({tr.values.size(0), -1}) / size).index({keep});
      const auto E = ((cr - tr.values) / size).index({keep});
      if (!E.isfinite().all().item<bool>() || X.size(1) != mirror.value(parameter).size(1)) continue;
      const auto g = at::matmul(X.t(), E), sx = X.square().sum(0), se = E.square().sum(0);
      gram = gram.defined() ? gram + g : g, squares = squares.defined() ? squares + sx : sx;
      error_squares = error_squares.defined() ? error_squares + se : se;
      rows += X.size(0);
    }
    if (rows < 2 * kLeastRows) continue;
    const double sigma = (error_squares / double(rows)).sqrt().median().item<double>();
    if (!(sigma > 0)) continue;
    const auto z = gram / (squares.sqrt().unsqueeze(1) * sigma);  // [in, out]
    const auto flat = z.abs().argmax().item<int64_t>();
    const auto in = flat / z.size(1), out = flat % z.size(1);
    const double strongest = z[in][out].abs().item<double>();
    // One weight: without what it explains, that output errs like the others; no other input explains as much; and no
    // other output has such an error.
    const auto explained = gram.select(1, out).square() / squares;
    const double rest = error_squares[out].item<double>() - explained[in].item<double>();
    auto by_others = explained.clone();
    by_others[in] = 0;
    const double next_rest = error_squares[out].item<double>() - by_others.max().item<double>();
    auto others = z.abs().clone();
    others.select(1, out).zero_();
    const double usual = sigma * sigma * double(rows);
    if (strongest < kWeightZ || strongest <= best_z || rest > 4 * usual || next_rest < 2 * rest ||
        others.max().item<double>() > std::max(kWeightZ, 0.5 * strongest))
      continue;
    best_z = strongest;
    Tried t;
    t.label = "one weight", t.fault_class = FaultClass::formula, t.parameter = parameter;
    t.index = {out, in};
    t.estimate = gram[in][out].item<double>() / squares[in].item<double>();
    t.estimate_error = sigma / std::sqrt(squares[in].item<double>());
    t.alpha = 1, t.alpha_error = t.estimate_error / std::abs(t.estimate), t.has_estimate = true;
    // With the offset put in, the rest must be rounding.
    Hypothesis h{t.label,
                 FaultClass::formula,
                 {s_.kind},
                 [&] {
                   Change c;
                   c.weights = [&](Tensors& tensors) {
                     auto& w = tensors.at(parameter);
                     w = w.clone();
                     w.index_put_({at::tensor(out), at::tensor(in)}, w[out][in] + t.estimate);
                   };
                   return c;
                 },
                 "",
                 {}};
    const bool rounding = project(h, std::nullopt, t.projection);
    t.left = t.projection.left();
    t.standing = rounding ? Standing::proved : Standing::ruled_out;
    best = t;
  }
  return best;
}

}  // namespace

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
  for (const auto& h : hypotheses()) {
    if (!h.applies(s.kind) || without.count(h.name)) continue;
    // A run in half precision rounds its weights and tables by itself.
    if (h.fault_class == FaultClass::precision && check.dtype() != at::kFloat) continue;
    causes.tried.push_back(finder.attempt(h));
    auto& t = causes.tried.back();
    if (t.standing != Standing::proved) t.projection = Projection();  // its rows are not needed any more
  }
  if (!without.count("one weight")) {
    if (auto weight = finder.single_weight()) causes.tried.push_back(std::move(*weight));
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
