// A single changed weight, from a recording: the error of each output regressed on what each weight multiplies.
#include <algorithm>
#include <cmath>

#include "verify/finder.h"
#include "verify/rows.h"

namespace lockstep {

namespace {

constexpr double kWeightZ = 8;            // of a single weight, against the median output's error
constexpr int64_t kLargestMap = 1 << 27;  // elements of a map whose error is regressed

}  // namespace

std::optional<Tried> Finder::single_weight() { return s_.kind == Kind::norm ? weight_of_a_norm() : weight_of_a_map(); }

/// Each output's error regressed on each input of a map, pooled over forwards; z against the median output's error.
std::optional<Tried> Finder::weight_of_a_map() {
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
    best = with_offset({parameter,
                        {out, in},
                        gram[in][out].item<double>() / squares[in].item<double>(),
                        sigma / std::sqrt(squares[in].item<double>()),
                        unit_of(check_.dtype()) * std::abs(mirror.value(parameter)[out][in].item<double>())});
  }
  return best;
}

/// A norm's output is one weight times one number each: n = what one more in the weight adds.
std::optional<Tried> Finder::weight_of_a_norm() {
  const auto parameter = s_.path + ".weight";
  Change one_more;
  one_more.weights = [&](Tensors& tensors) { tensors.at(parameter) = tensors.at(parameter) + 1.0; };
  at::Tensor products, squares, error_squares, truth_squares, run_squares;
  int64_t rows = 0;
  auto add = [](at::Tensor& sum, const at::Tensor& x) { sum = sum.defined() ? sum + x : x; };
  for (const auto& e : side_.evaluations) {
    std::map<std::string, LayerCache> left;
    const auto more = under(one_more, false, *e, Order::plain, left);
    for (const auto& p : pool_) {
      const auto kept = p.e == e.get() ? rows_under(more, p) : at::Tensor();
      if (!kept.defined()) continue;
      const auto size = p.truth.square().sum(1, true).sqrt();
      const auto n = (kept - p.truth) / size, error = (p.candidate.to(at::kDouble) - p.truth) / size;
      if (!error.isfinite().all().item<bool>()) continue;
      add(products, (n * error).sum(0)), add(squares, n.square().sum(0)), add(error_squares, error.square().sum(0));
      add(truth_squares, (p.truth / size).square().sum(0));
      add(run_squares, ((p.run.to(at::kDouble) - p.truth) / size).square().sum(0));
      rows += n.size(0);
    }
  }
  if (rows < kLeastRows) return std::nullopt;
  const double sigma = (error_squares / double(rows)).sqrt().median().item<double>();
  if (!(sigma > 0)) return std::nullopt;
  auto z = products.abs() / (squares.sqrt() * sigma);
  const auto at = z.argmax().item<int64_t>();
  const double strongest = z[at].item<double>();
  const double offset = products[at].item<double>() / squares[at].item<double>();
  const double rest = error_squares[at].item<double>() - offset * products[at].item<double>();
  z[at] = 0;
  // What multiplies is w or 1 + w; a large one rounds by more.
  const double scale = std::sqrt((truth_squares[at] / squares[at]).item<double>());
  const double usual = std::max(sigma * sigma * double(rows), run_squares[at].item<double>());
  // One weight: without what it explains, its output errs like the others, and no other output has such an error.
  if (strongest < kWeightZ || rest > 4 * usual || z.max().item<double>() > std::max(kWeightZ, 0.5 * strongest))
    return std::nullopt;
  return with_offset(
      {parameter, {at}, offset, sigma / std::sqrt(squares[at].item<double>()), unit_of(check_.dtype()) * scale});
}

Tried Finder::with_offset(const Single& single) {
  Tried t;
  t.label = "one weight", t.fault_class = FaultClass::formula;
  t.parameter = single.parameter, t.index = single.index;
  t.estimate = single.offset, t.estimate_error = single.error, t.has_estimate = true;
  t.alpha = 1, t.alpha_error = single.error / std::abs(single.offset);
  Hypothesis h{t.label,
               t.fault_class,
               {s_.kind},
               [&] {
                 Change c;
                 c.weights = [&](Tensors& tensors) {
                   auto& w = tensors.at(single.parameter);
                   w = w.clone();
                   auto element = w;
                   for (const auto i : single.index) element = element.select(0, i);
                   element += single.offset;
                 };
                 return c;
               },
               "",
               {}};
  const bool rounding = project(h, std::nullopt, t.projection);
  t.left = t.projection.left();
  if (!rounding || std::abs(single.offset) <= single.held) {
    t.standing = Standing::ruled_out;
  } else {
    t.standing = shown_by_right_arithmetic(t.projection.control()) ? Standing::not_discriminated : Standing::proved;
  }
  return t;
}

}  // namespace lockstep
