#include "verify/local_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/tensor_text.h"
#include "nn/aligned.h"
#include "verify/drawn.h"
#include "verify/rows.h"

namespace lockstep {

double bound_of(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble ? kBoundFloat32 : kBoundHalf;
}

double least_floor(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return 2.4e-4;
    case at::kBFloat16:
      return 2e-3;
    case at::kDouble:
      return 5.6e-17;
    default:
      return 3e-8;
  }
}

bool SideResult::faulty() const {
  return std::any_of(judged.begin(), judged.end(), [](const Judged& j) { return j.verdict > Verdict::rounding; });
}

namespace {

at::ScalarType dtype_of(const std::string& name) {
  if (name == "float64") return at::kDouble;
  const auto dtype = run_dtype(name);
  if (!dtype) throw InputError(fmt::format("dtype \"{}\": expected float32, bfloat16, float16 or float64", name));
  return *dtype;
}

Layout layout_of(const Trace& trace) { return {trace.variant(), trace.attn() == "eager" ? Attn::eager : Attn::sdpa}; }

/// Worst attended row of `x` against the truth; NaN if there is one. -1 rows: nothing attended.
struct Worst {
  double error = 0;
  int64_t row = -1, rows = 0, skipped = 0, inherited_nan = 0;
  bool skipped_nan = false;
};

Worst worst_row(const std::string& point, const at::Tensor& x, const at::Tensor& truth, const TraceForward& forward,
                const std::string& variant) {
  const auto rows = rows_of(point, x, forward, variant), truths = rows_of(point, truth, forward, variant);
  auto errors = row_errors(rows.values, truths.values).contiguous();
  const auto attended = rows.attended.contiguous();
  const auto finite = truths.values.isfinite().all(1).contiguous();
  Worst w;
  const auto* e = errors.const_data_ptr<double>();
  const auto* counts = attended.const_data_ptr<bool>();
  for (int64_t i = 0; i < errors.numel(); ++i) {
    if (!counts[i]) {
      ++w.skipped, w.skipped_nan |= std::isnan(e[i]);
      continue;
    }
    if (!finite.const_data_ptr<bool>()[i]) {
      ++w.inherited_nan;
      continue;
    }
    ++w.rows;
    if (!(e[i] <= w.error)) {
      if (std::isnan(w.error)) continue;
      w.error = e[i], w.row = i;
    }
  }
  return w;
}

/// Points of a sublayer that follow from its inputs alone: its output and what it leaves, or a table.
bool outer(const Sublayer& s, const std::string& point) {
  if (s.kind == Kind::layer) return true;
  if (point == s.path + ".output") return s.kind != Kind::rotary;
  if (point.compare(0, s.path.size() + 1, s.path + "@") != 0) return false;
  return s.kind == Kind::rotary || is_state(point);
}

}  // namespace

LocalCheck::LocalCheck(const std::string& folder, const std::string& dtype, const std::string& attn,
                       TraceForward len130)
    : dtype_(dtype_of(dtype)), truth_(folder, at::kDouble), run_(folder, dtype_) {
  sublayers_ = sublayers_of(truth_.model());
  floor_side_.name = "len130";
  floor_side_.trace = std::make_shared<Trace>(run_.whole(len130, dtype, attn, "5.18"));
  add_frames(floor_side_);
  ++cost_.len130;
}

void LocalCheck::add_side(const std::string& name, std::shared_ptr<const Trace> trace) {
  Side side;
  side.name = name, side.trace = std::move(trace);
  add_frames(side);
  sides_.push_back(std::move(side));
}

void LocalCheck::add_frames(Side& side) {
  for (const auto& f : side.trace->forwards()) {
    const auto past = side.trace->past(f.name);
    const bool cached = side.trace->cached(f.name);
    try {
      side.frames[f.name] = {truth_.context(f, past, cached, layout_of(*side.trace), exact_),
                             run_.context(f, past, cached, layout_of(*side.trace), hf_arithmetic())};
    } catch (const InputError& e) {
      throw InputError(fmt::format("input '{}': {}", f.name, e.what()));
    }
  }
}

const LocalCheck::Frame& LocalCheck::frame(const Trace* trace, const std::string& forward) const {
  for (const auto& side : sides_) {
    if (side.trace.get() == trace) return side.frames.at(forward);
  }
  return floor_side_.frames.at(forward);
}

const Context& LocalCheck::truth_context(const Trace* trace, const std::string& forward) const {
  return frame(trace, forward).truth;
}

const Context& LocalCheck::run_context(const Trace* trace, const std::string& forward) const {
  return frame(trace, forward).run;
}

Given LocalCheck::gather(const Sublayer& s, const Side& side, const TraceForward& f) const {
  const auto& trace = *side.trace;
  auto recorded = [&](const std::string& point) {
    return trace.promised(f.name, point) ? aligned(trace.tensor(f.name, point)) : at::Tensor();
  };
  auto hidden = [&](const std::string& point) {  // [B, T, ...] of this forward, else of no use
    const auto x = recorded(point);
    const bool fits = x.defined() && x.dim() == 3 && x.size(0) == f.ids.size(0) && x.size(1) == f.ids.size(1) &&
                      x.is_floating_point();
    return fits ? x : at::Tensor();
  };
  Given g;
  g.past_tokens = trace.past(f.name), g.cached = trace.cached(f.name);
  if (s.kind == Kind::layer) {
    at::Tensor stream;
    for (const auto& point : s.inputs) {
      if (!stream.defined()) stream = hidden(point);
    }
    const bool linear = truth_.model().mechanisms().layer_types[static_cast<size_t>(s.layer)] == "linear_attention";
    const auto mixer = s.path + (linear ? ".linear_attn" : ".self_attn");
    const auto second = s.path + ".post_attention_layernorm";
    g.terms = {stream,
               hidden(s.path + ".input_layernorm.output"),
               hidden(mixer + ".output"),
               hidden(second + ".input"),
               hidden(second + ".output"),
               hidden(s.path + ".mlp.output")};
    return g;
  }
  for (const auto& point : s.inputs) {
    if (!g.x.defined()) g.x = hidden(point);
  }
  if (s.kind == Kind::self_attn) {
    const auto& own = side.frames.at(f.name).truth;
    auto table = [&](const std::string& point, const at::Tensor& like) {
      const auto x = recorded(point);
      return x.defined() && x.sizes() == like.sizes() ? x : at::Tensor();
    };
    g.cos = table("model.rotary_emb@cos", own.cos), g.sin = table("model.rotary_emb@sin", own.sin);
  }
  if (g.cached && !f.past.empty() && (s.kind == Kind::self_attn || s.kind == Kind::linear_attn)) {
    const auto it = side.after.find(f.past);
    auto state = [&](const char* name, at::Tensor LayerCache::*member) -> at::Tensor {
      const auto point = s.path + "@" + name;
      const auto by_truth = it == side.after.end() ? at::Tensor() : it->second.*member;
      const auto x = trace.promised(f.past, point) ? aligned(trace.tensor(f.past, point)) : at::Tensor();
      return x.defined() && by_truth.defined() && x.sizes() == by_truth.sizes() ? x : by_truth;
    };
    if (s.kind == Kind::self_attn) {
      g.past.keys = state("key_cache", &LayerCache::keys), g.past.values = state("value_cache", &LayerCache::values);
      if (!g.past.keys.defined()) g.x = at::Tensor();  // nothing to continue from
    } else {
      g.past.conv_state = state("conv_state", &LayerCache::conv_state);
      g.past.recurrent_state = state("recurrent_state", &LayerCache::recurrent_state);
      if (!g.past.conv_state.defined()) g.x = at::Tensor();
    }
  }
  return g;
}

std::shared_ptr<Evaluation> LocalCheck::evaluate(const Sublayer& s, Side& side, const TraceForward& f,
                                                 const std::vector<std::shared_ptr<Evaluation>>& others) {
  auto given = gather(s, side, f);
  const bool needs_x = s.kind != Kind::embedding && s.kind != Kind::rotary && s.kind != Kind::layer;
  if (needs_x && !given.x.defined()) return nullptr;
  for (const auto& other : others) {
    if (!(other->layout == layout_of(*side.trace)) || !same_bits(other->given, given)) continue;
    ++cost_.shared;
    side.after[f.name] = other->after;
    return other;
  }
  auto e = std::make_shared<Evaluation>();
  e->given = std::move(given), e->layout = layout_of(*side.trace), e->forward = &f, e->trace = side.trace.get();
  const auto& frame = side.frames.at(f.name);
  truth_.run(s, f, e->given, frame.truth, e->layout, exact_, e->truth, &e->after);
  run_.run(s, f, e->given, frame.run, e->layout, hf_arithmetic(), e->run);
  side.after[f.name] = e->after;
  if (&side == &floor_side_) {
    ++cost_.len130;
  } else {
    ++cost_.truth, ++cost_.floor;
  }
  return e;
}

const LocalCheck::Side& LocalCheck::side_of(const Evaluation& e) const {
  for (const auto& side : sides_) {
    if (side.trace.get() == e.trace) return side;
  }
  return floor_side_;
}

void LocalCheck::evaluate_values(const Sublayer& s, Evaluation& e) {
  if (e.with_values) return;
  e.with_values = true;
  const auto& frame = side_of(e).frames.at(e.forward->name);
  e.forced_truth = Values(*e.trace, e.forward->name), e.forced_run = Values(*e.trace, e.forward->name);
  truth_.run(s, *e.forward, e.given, frame.truth, e.layout, exact_, e.forced_truth);
  run_.run(s, *e.forward, e.given, frame.run, e.layout, hf_arithmetic(), e.forced_run);
  if (&side_of(e) != &floor_side_) ++cost_.values;
  if (e.indexed) e.indexed = false, evaluate_index(s, e);
}

void LocalCheck::evaluate_index(const Sublayer& s, Evaluation& e) {
  if (e.indexed) return;
  e.indexed = true;
  if (dtype_ == at::kDouble) return;  // no simple engine keeps float32 accumulators in a float64 run
  const auto& frame = side_of(e).frames.at(e.forward->name);
  // In half precision one run's roundings are one throw of few dice, and a row that cancels (a first token whose q.k is
  // small) may lose four times as much in another right engine.
  auto draw = [&](const Values& empty, std::vector<Values>& out) {
    for (int i = 0; i < (dtype_ == at::kFloat ? 0 : kDraws); ++i) {
      out.push_back(empty);
      run_.run(s, *e.forward, e.given, frame.run, e.layout, Drawn(static_cast<uint64_t>(i)), out.back());
    }
  };
  if (e.index.at.empty()) {
    run_.run(s, *e.forward, e.given, frame.run, e.layout, in_order_, e.index);
    if (&side_of(e) != &floor_side_) ++cost_.index;
    draw(Values(), e.draws);
  }
  if (!e.with_values) return;
  e.forced_index = Values(*e.trace, e.forward->name);
  run_.run(s, *e.forward, e.given, frame.run, e.layout, in_order_, e.forced_index);
  e.forced_draws.clear();
  draw(Values(*e.trace, e.forward->name), e.forced_draws);
}

double LocalCheck::floor_of(const Evaluation& e, const std::string& point, bool inner, bool with_index) {
  double floor = least_floor(dtype_);
  auto raise = [&](const Evaluation& from) {
    const auto& truth = inner ? from.forced_truth : from.truth;
    const auto t = truth.at.find(point);
    if (t == truth.at.end()) return;
    auto with = [&](const Values& values) {
      const auto x = values.at.find(point);
      if (x == values.at.end() || x->second.sizes() != t->second.sizes()) return;
      const auto w = worst_row(point, x->second, t->second, *from.forward, from.layout.variant);
      if (std::isfinite(w.error)) floor = std::max(floor, w.error);
    };
    with(inner ? from.forced_run : from.run);
    if (!with_index) return;
    with(inner ? from.forced_index : from.index);
    for (const auto& values : inner ? from.forced_draws : from.draws) with(values);
  };
  raise(e);
  if (floor_) raise(*floor_);
  return floor;
}

Judged LocalCheck::judge_point(const Sublayer& s, const Side& side, Evaluation& e, const std::string& point,
                               bool inner) {
  Judged j;
  j.point = point, j.forward = e.forward->name, j.inner = inner;
  auto x = side.trace->tensor(j.forward, point);
  const auto& truth = (inner ? e.forced_truth : e.truth).at.at(point);
  const auto& expected = (inner ? e.forced_run : e.run).at.at(point);
  if (!x.defined()) {
    j.verdict = Verdict::missing, j.note = "promised, but not there";
    return j;
  }
  if (const auto same = inner ? inner_as(x, expected) : x; same.defined()) x = same;
  if (x.sizes() != expected.sizes()) {
    j.verdict = Verdict::shape;
    j.note = fmt::format("expected {}, found {}", shape_text(expected.sizes()), shape_text(x.sizes()));
    return j;
  }
  if (x.scalar_type() != expected.scalar_type()) {
    j.verdict = Verdict::dtype;
    j.note = fmt::format("expected {}, found {}", dtype_name(expected.scalar_type()), dtype_name(x.scalar_type()));
    return j;
  }
  const auto w = worst_row(point, x, truth, *e.forward, e.layout.variant);
  j.error = w.error, j.row = w.row, j.rows = w.rows, j.skipped = w.skipped, j.inherited_nan = w.inherited_nan;
  if (w.skipped_nan) j.note = "NaN on pad rows, which do not count";
  if (std::isnan(w.error)) {
    j.verdict = Verdict::non_finite;
    return j;
  }
  const double bound = bound_of(dtype_);
  j.floor = floor_of(e, point, inner, false);
  if (!(j.error <= bound * j.floor)) {
    evaluate_index(s, e);
    if (floor_) evaluate_index(s, *floor_);
    j.floor = floor_of(e, point, inner, true);
  }
  j.verdict = j.error <= bound * j.floor ? Verdict::rounding : Verdict::deviates;
  return j;
}

std::vector<SideResult> LocalCheck::judge(const Sublayer& s) {
  truth_.bind(s), run_.bind(s);
  floor_side_.after.clear();
  floor_ = evaluate(s, floor_side_, floor_side_.trace->forwards().front(), {});
  std::vector<SideResult> results;
  for (auto& side : sides_) {
    side.after.clear();
    SideResult result;
    result.side = side.name;
    for (const auto& f : side.trace->forwards()) {
      std::vector<std::shared_ptr<Evaluation>> others;
      for (const auto& earlier : results) {
        for (const auto& e : earlier.evaluations) {
          if (e->forward->name == f.name) others.push_back(e);
        }
      }
      auto e = evaluate(s, side, f, others);
      if (!e) continue;
      for (const auto& point : e->truth.order) {
        if (outer(s, point) && side.trace->promised(f.name, point))
          result.judged.push_back(judge_point(s, side, *e, point, false));
      }
      result.evaluations.push_back(std::move(e));
    }
    results.push_back(std::move(result));
  }
  return results;
}

void LocalCheck::look_inside(const Sublayer& s, std::vector<SideResult>& results) {
  if (s.kind == Kind::layer || s.kind == Kind::embedding || s.kind == Kind::norm || s.kind == Kind::head) return;
  if (floor_) evaluate_values(s, *floor_);
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& side = sides_[i];
    for (auto& e : results[i].evaluations) {
      if (e->trace != side.trace.get()) {  // shared by its inputs; the inner values may differ
        auto own = std::make_shared<Evaluation>(*e);
        own->trace = side.trace.get(), own->with_values = false;
        own->forward = &side.trace->forward(e->forward->name);
        e = std::move(own);
      }
      evaluate_values(s, *e);
      for (const auto& point : e->forced_truth.order) {
        const bool ends = point == s.path + ".input" || point == s.path + ".output";
        if (!ends && side.trace->promised(e->forward->name, point))
          results[i].judged.push_back(judge_point(s, side, *e, point, true));
      }
    }
  }
}

}  // namespace lockstep
