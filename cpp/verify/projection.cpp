#include "verify/projection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace lockstep {

namespace {
constexpr double kSmallest = 1e-12;  // a row with |d| below this part of |t| counts as 0
constexpr double kInfinite = std::numeric_limits<double>::infinity();

double total(const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0); }
}  // namespace

void Projection::add(const at::Tensor& candidate, const at::Tensor& truth, const at::Tensor& hypothesis,
                     const at::Tensor& run, size_t source) {
  const auto t = truth.to(at::kDouble), size = t.square().sum(1, /*keepdim=*/true).sqrt();
  const auto e = (candidate.to(at::kDouble) - t) / size;
  auto d = (hypothesis.to(at::kDouble) - t) / size;
  d = at::where(d.square().sum(1, true).sqrt() < kSmallest, at::zeros({}, at::kDouble), d);
  const auto w = d.square().sum(1).contiguous(), p = (e * d).sum(1).contiguous();
  w_.insert(w_.end(), w.const_data_ptr<double>(), w.const_data_ptr<double>() + w.numel());
  p_.insert(p_.end(), p.const_data_ptr<double>(), p.const_data_ptr<double>() + p.numel());
  if (w.numel()) largest_ = std::max(largest_, w.max().item<double>());
  control_ += ((run.to(at::kDouble) - t) / size * d).sum().item<double>();
  left_ += (e - d).square().sum().item<double>();
  error_ += e.square().sum().item<double>();
  d_.push_back(d), e_.push_back(e), sources_.push_back(source);
}

double Projection::further(const Projection& before) const {
  double along = 0, square = 0;
  for (size_t i = 0; i < d_.size(); ++i) {
    const auto step = i < before.d_.size() ? d_[i] - before.d_[i] : d_[i];
    along += ((e_[i] - d_[i]) * step).sum().item<double>(), square += step.square().sum().item<double>();
  }
  return square > 0 ? along / square : 0;
}

double Projection::alpha() const {
  const auto w = total(w_);
  return w > 0 ? total(p_) / w : 0;
}

double Projection::control() const {
  const auto w = total(w_);
  return w > 0 ? control_ / w : 0;
}

double Projection::alpha_of(const std::function<at::Tensor(size_t)>& error) const {
  double along = 0;
  for (size_t i = 0; i < d_.size(); ++i) {
    const auto e = error(sources_[i]);
    if (e.defined() && e.sizes() == d_[i].sizes()) along += (e * d_[i]).sum().item<double>();
  }
  const auto w = total(w_);
  return w > 0 ? along / w : 0;
}

double Projection::alpha_error() const {
  const auto w = total(w_), p = total(p_);
  const auto n = static_cast<double>(std::count_if(w_.begin(), w_.end(), [](double x) { return x > 0; }));
  if (n < 2) return kInfinite;
  double mean = 0;
  for (size_t i = 0; i < w_.size(); ++i) {
    if (w_[i] <= 0) continue;
    if (w - w_[i] <= 0) return kInfinite;
    const double without = (p - p_[i]) / (w - w_[i]);
    mean += without;
  }
  mean /= n;
  double square = 0;
  for (size_t i = 0; i < w_.size(); ++i) {
    if (w_[i] > 0) square += std::pow((p - p_[i]) / (w - w_[i]) - mean, 2);
  }
  return std::sqrt((n - 1) / n * square);
}

double Projection::effect() const { return w_.empty() ? 0 : std::sqrt(total(w_) / static_cast<double>(w_.size())); }

int64_t Projection::rows_over(double size) const {
  return std::count_if(w_.begin(), w_.end(), [&](double w) { return w > size * size; });
}

double Projection::effective_rows() const {
  double squares = 0;
  for (double w : w_) squares += w * w;
  return squares > 0 ? std::pow(total(w_), 2) / squares : 0;
}

double Projection::collinearity(const Projection& a, const Projection& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < std::min(a.d_.size(), b.d_.size()); ++i) {
    if (a.d_[i].sizes() != b.d_[i].sizes()) return 0;
    ab += (a.d_[i] * b.d_[i]).sum().item<double>();
    aa += a.d_[i].square().sum().item<double>(), bb += b.d_[i].square().sum().item<double>();
  }
  return aa > 0 && bb > 0 ? std::abs(ab) / std::sqrt(aa * bb) : 0;
}

}  // namespace lockstep
