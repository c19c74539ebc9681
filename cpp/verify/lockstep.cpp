#include "verify/lockstep.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/tensor_text.h"

namespace lockstep {

using nlohmann::json;

namespace {

constexpr const char* kLogits = "lm_head.output";

json number(double x) { return std::isfinite(x) ? json(x) : json(nullptr); }

json entry_of(const std::string& point, const std::string& input, const at::Tensor& reference,
              const at::Tensor& candidate, const Metrics& m) {
  json e{{"point", point},
         {"input", input},
         {"shape", candidate.sizes().vec()},
         {"dtype", dtype_name(candidate.scalar_type())},
         {"max_ulp", number(m.max_ulp)},
         {"max_abs", number(m.max_abs)},
         {"rel_l2", number(m.rel_l2)},
         {"cosine", number(m.cosine)},
         {"worst_index", m.worst_index.empty() ? json(nullptr) : json(m.worst_index)},
         {"verdict", name(m.verdict)}};
  if (m.verdict != Verdict::identical) {
    e["bad_elements"] = m.bad_elements, e["elements"] = m.elements;
    if (reference.sizes() != candidate.sizes()) e["reference_shape"] = reference.sizes().vec();
    if (reference.scalar_type() != candidate.scalar_type()) e["reference_dtype"] = dtype_name(reference.scalar_type());
    if (m.reference_non_finite) e["note"] = "the reference holds a NaN too";
  }
  return e;
}

/// The three largest logits of one row: [{id, logit}].
json top3(const at::Tensor& row) {
  const auto [values, ids] = row.to(at::kDouble).topk(std::min<int64_t>(3, row.numel()));
  json list = json::array();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    list.push_back({{"id", ids[i].item<int64_t>()}, {"logit", number(values[i].item<double>())}});
  }
  return list;
}

class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  double& total_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

LockstepForward::LockstepForward(Mirror& mirror, const Variant& variant, Attn attn, Level level, const Gate& gate,
                                 ForwardSpec spec)
    : mirror_(mirror),
      gate_(gate),
      spec_(std::move(spec)),
      run_(variant, attn, level, static_cast<Recorder*>(this), spec_.cache.get()) {}

void LockstepForward::reference(const std::string& point, const at::Tensor& value, bool keep) {
  if (++fired_[point] > 1) return;  // a second firing is reported, the first is judged
  arrived_.push_back(point);
  const auto plain = value.detach();
  if (auto it = early_.find(point); it != early_.end()) {
    compare_point(point, plain, it->second);
    early_.erase(it);
    return;
  }
  pending_[point] = keep ? plain.clone(at::MemoryFormat::Contiguous) : plain;
}

void LockstepForward::advance(int64_t index) {
  const auto layers = mirror_.model().layers();
  while (next_ < std::min(index + 1, layers)) step();
}

void LockstepForward::complete() {
  while (next_ <= mirror_.model().layers()) step();
}

void LockstepForward::step() {
  Stopwatch watch(seconds_);
  at::NoGradGuard no_grad;
  auto& model = mirror_.model();
  try {
    model.step(run_, state_, spec_.inputs, next_);
    if (next_ == model.layers()) state_ = {};
  } catch (const c10::Error& e) {
    throw InputError(fmt::format("input '{}': the mirror cannot run it: {}", spec_.name, e.what_without_backtrace()));
  }
  ++next_;
}

void LockstepForward::record(const std::string& point, const at::Tensor& value) {
  order_.push_back(point);
  if (point == kLogits) mirror_logits_ = value.detach();
  const auto it = pending_.find(point);
  if (it == pending_.end()) {
    early_[point] = value.detach().clone();
    return;
  }
  compare_point(point, it->second, value);
  pending_.erase(it);
}

void LockstepForward::compare_point(const std::string& point, const at::Tensor& reference,
                                    const at::Tensor& candidate) {
  results_[point] = entry_of(point, spec_.name, reference, candidate, compare(reference, candidate, gate_));
  if (point == kLogits) compare_head(reference, candidate);
}

void LockstepForward::compare_head(const at::Tensor& reference, const at::Tensor& candidate) {
  logits_ = {{"input", spec_.name}, {"kl", nullptr}, {"top1_agreement", nullptr}};
  if (reference.dim() == 3 && reference.sizes() == candidate.sizes()) {
    const auto agreement = compare_logits(reference, candidate, spec_.inputs.mask);
    logits_["kl"] = number(agreement.kl), logits_["top1_agreement"] = agreement.top1_agreement;
  }
  if (reference.dim() == 3) logits_["top3"]["reference"] = top3(reference[0][-1]);
  logits_["top3"]["mirror"] = top3(candidate[0][-1]);
}

void LockstepForward::returned_logits(const at::Tensor& logits) {
  complete();
  const auto m = compare(logits.detach(), mirror_logits_, gate_);
  auto& at_head = results_[kLogits];
  const bool worse = at_head.is_null() || m.verdict > verdict_named(at_head["verdict"]);
  if (worse) {
    at_head = entry_of(kLogits, spec_.name, logits.detach(), mirror_logits_, m);
    at_head["note"] = "the reference returns other logits than its lm_head gave";
    compare_head(logits.detach(), mirror_logits_);
  }
  mirror_logits_ = at::Tensor();
}

json LockstepForward::finish() {
  complete();
  json points = json::array(), fired = json::array();
  auto missing = [&](const std::string& point, const at::Tensor& value, const char* note) {
    Metrics m;
    m.verdict = Verdict::missing;
    m.max_ulp = m.max_abs = m.rel_l2 = m.cosine = std::numeric_limits<double>::quiet_NaN();
    m.elements = m.bad_elements = value.numel();
    auto e = entry_of(point, spec_.name, value, value, m);
    e["note"] = note;
    points.push_back(e);
  };
  for (const auto& point : order_) {
    if (auto it = results_.find(point); it != results_.end()) {
      if (fired_[point] != 1) it->second["verdict"] = name(Verdict::missing);
      points.push_back(std::move(it->second));
    } else {
      missing(point, early_.at(point), "the reference never fired it");
    }
    if (fired_[point] != 1) fired.push_back({{"point", point}, {"times", fired_[point]}});
  }
  for (const auto& point : arrived_) {
    if (auto it = pending_.find(point); it != pending_.end()) missing(point, it->second, "the mirror never fired it");
  }
  pending_.clear(), early_.clear(), mirror_logits_ = at::Tensor();
  return {{"points", points}, {"logits", logits_}, {"fired", fired}};
}

}  // namespace lockstep
