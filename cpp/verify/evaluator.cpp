#include "verify/evaluator.h"

#include <ATen/core/grad_mode.h>
#include <algorithm>

#include "core/metrics.h"
#include "nn/aligned.h"
#include "verify/rows.h"

namespace lockstep {

void Values::record(const std::string& point, const at::Tensor& value) {
  order.push_back(point);
  at[point] = value.detach();
}

const at::Tensor* Values::instead(const std::string& point, const at::Tensor& value) {
  if (!forced_ || !forced_->promised(forward_, point)) return nullptr;
  const auto recorded = forced_->tensor(forward_, point);
  if (!recorded.defined()) return nullptr;
  replacement_ = inner_as(recorded, value);
  if (!replacement_.defined()) return nullptr;
  replacement_ = aligned(replacement_.to(value.scalar_type()));
  return &replacement_;
}

namespace {

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() || (a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && same_bits(a, b));
}

/// The release's layouts and casts, with padding masked as the formula wants it: releases that skip the mask in a batch
/// of one are wrong there, and a floor that follows them would hide it.
Variant layouts(const std::string& name) {
  auto variant = Variant::named(name);
  variant.mask_batches_only = false;
  return variant;
}

}  // namespace

bool same_bits(const Given& a, const Given& b) {
  if (a.terms.size() != b.terms.size()) return false;
  for (size_t i = 0; i < a.terms.size(); ++i) {
    if (!same(a.terms[i], b.terms[i])) return false;
  }
  return a.cached == b.cached && same(a.x, b.x) && same(a.cos, b.cos) && same(a.sin, b.sin) &&
         same(a.past.keys, b.past.keys) && same(a.past.values, b.past.values) &&
         same(a.past.conv_state, b.past.conv_state) && same(a.past.recurrent_state, b.past.recurrent_state);
}

Evaluator::Evaluator(const std::string& folder, at::ScalarType dtype) : mirror_(Mirror::open(folder)), dtype_(dtype) {}

void Evaluator::bind(const Sublayer& sublayer) {
  for (const auto& name : bound_) mirror_->share(name, at::Tensor());
  bound_.clear();
  if (sublayer.kind == Kind::layer) return;  // its parameters are its sublayers'
  for (const auto* p : mirror_->parameters()) {
    if (p->name.compare(0, sublayer.path.size() + 1, sublayer.path + ".") != 0) continue;
    mirror_->share(p->name, mirror_->file_tensor(p->name).to(dtype_));
    bound_.push_back(p->name);
  }
}

Context Evaluator::context(const TraceForward& forward, int64_t past, bool cached, const Layout& layout,
                           const Arithmetic& arithmetic, Values* values) {
  at::NoGradGuard no_grad;
  auto cache = mirror_->model().new_cache();
  cache.past = past;
  Run run(layouts(layout.variant), layout.attn, Level::all, values, cached ? &cache : nullptr, arithmetic);
  const Inputs inputs{forward.ids, forward.positions, forward.mask};
  mirror_->model().check(inputs, run.cache);
  return mirror_->model().context(run, at::empty({forward.ids.size(0), forward.ids.size(1), 0}, dtype_), inputs);
}

void Evaluator::run(const Sublayer& sublayer, const TraceForward& forward, const Given& given, const Context& context,
                    const Layout& layout, const Arithmetic& arithmetic, Values& values, LayerCache* after) {
  at::NoGradGuard no_grad;
  if (sublayer.kind == Kind::layer) return sums(sublayer, given, arithmetic, values);
  if (sublayer.kind == Kind::rotary) {
    this->context(forward, given.past_tokens, given.cached, layout, arithmetic, &values);
    return;
  }
  auto cache = mirror_->model().new_cache();
  cache.past = given.past_tokens;
  auto in_dtype = [&](const at::Tensor& x) { return x.defined() ? x.to(dtype_) : x; };
  if (given.cached && sublayer.layer >= 0) {
    auto& layer = cache.layers[static_cast<size_t>(sublayer.layer)];
    layer = given.past;
    layer.keys = in_dtype(layer.keys), layer.values = in_dtype(layer.values);
    layer.conv_state = in_dtype(layer.conv_state);
    if (auto& state = layer.recurrent_state; state.defined()) {  // of a run it keeps its own dtype
      const auto own = layouts(layout.variant).state_in_run_dtype ? dtype_ : at::kFloat;
      if (dtype_ == at::kDouble || state.scalar_type() == at::kDouble)
        state = state.to(dtype_ == at::kDouble ? dtype_ : own);
    }
  }
  Run run(layouts(layout.variant), layout.attn, Level::all, &values, given.cached ? &cache : nullptr, arithmetic);
  auto here = context;
  if (given.cos.defined()) here.cos = in_dtype(given.cos);
  if (given.sin.defined()) here.sin = in_dtype(given.sin);
  auto* module = mirror_->model().find(sublayer.path);
  const auto x = sublayer.kind == Kind::embedding ? forward.ids : in_dtype(given.x);
  const auto output = module->apply(run, x, here);
  values.record(sublayer.path + ".output", output);
  if (after && sublayer.layer >= 0) *after = cache.layers[static_cast<size_t>(sublayer.layer)];
}

/// A layer by itself: its two sums on their recorded terms, and its wiring, which changes no bit.
/// terms: stream, first norm's output, mixer's output, stream between, second norm's output, mlp's output.
void Evaluator::sums(const Sublayer& layer, const Given& given, const Arithmetic& arithmetic, Values& values) {
  auto* module = mirror_->model().find(layer.path);
  auto term = [&](size_t i) { return given.terms[i].defined() ? given.terms[i].to(dtype_) : at::Tensor(); };
  auto put = [&](const std::string& point, const at::Tensor& x) {
    if (x.defined()) values.record(point, x);
  };
  auto sum = [&](const at::Tensor& a, const at::Tensor& b) {
    return a.defined() && b.defined() && a.sizes() == b.sizes() ? arithmetic.residual(*module, a, b) : at::Tensor();
  };
  const auto mixer = mirror_->model().find(layer.path + ".linear_attn") ? ".linear_attn" : ".self_attn";
  put(layer.path + ".input_layernorm.input", term(0));
  put(layer.path + mixer + ".input", term(1));
  put(layer.path + ".post_attention_layernorm.input", sum(term(0), term(2)));
  put(layer.path + ".mlp.input", term(4));
  put(layer.path + ".output", sum(term(3), term(5)));
}

Trace Evaluator::whole(const TraceForward& forward, const std::string& dtype, const std::string& attn,
                       const std::string& variant) {
  at::NoGradGuard no_grad;
  mirror_->stream(dtype_);
  struct Copies final : Recorder {
    std::vector<std::pair<std::string, at::Tensor>> list;
    void record(const std::string& point, const at::Tensor& value) override { list.emplace_back(point, value.clone()); }
  } copies;
  auto cache = mirror_->model().new_cache();
  Run run(Variant::named(variant), attn == "eager" ? Attn::eager : Attn::sdpa, Level::all, &copies, &cache);
  mirror_->model().forward(run, {forward.ids, forward.positions, forward.mask});
  mirror_->stop_streaming();
  // It has a cache because something continues it: its states are points too.
  Trace trace(dtype, attn, variant, {forward, {"continued", forward.ids, {}, {}, forward.name}});
  for (const auto& [point, value] : copies.list) trace.add(forward.name, point, value);
  return trace;
}

bool Evaluator::changes(const WeightEdit& edit) const {
  std::map<std::string, at::Tensor> originals;
  for (const auto& name : bound_) originals[name] = mirror_->value(name);
  auto changed = originals;
  edit(changed);
  return std::any_of(changed.begin(), changed.end(), [&](const auto& entry) {
    const auto& original = originals.at(entry.first);
    return !entry.second.is_same(original) && !at::equal(entry.second, original);
  });
}

void Evaluator::edited(const WeightEdit& edit, const std::function<void()>& function) {
  std::map<std::string, at::Tensor> originals;
  for (const auto& name : bound_) originals[name] = mirror_->value(name);
  auto changed = originals;
  edit(changed);
  for (const auto& [name, value] : changed) mirror_->share(name, value);
  try {
    function();
  } catch (...) {
    for (const auto& [name, value] : originals) mirror_->share(name, value);
    throw;
  }
  for (const auto& [name, value] : originals) mirror_->share(name, value);
}

}  // namespace lockstep
