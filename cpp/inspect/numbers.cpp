#include "inspect/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

namespace lockstep::inspect {

nlohmann::json number(double x) {
  if (!std::isfinite(x)) return nullptr;
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", x);
  return std::strtod(text, nullptr);
}

nlohmann::json numbers(const at::Tensor& x) {
  const auto values = x.to(at::kDouble).contiguous();
  const auto* data = values.const_data_ptr<double>();
  auto list = nlohmann::json::array();
  for (int64_t i = 0; i < values.numel(); ++i) list.push_back(number(data[i]));
  return list;
}

nlohmann::json spread(const at::Tensor& x_in) {
  const auto x = x_in.to(at::kDouble);
  const auto l2 = x.norm(2, {-1});                                                 // [T]
  const auto near = kNearZero * l2.unsqueeze(-1) / std::sqrt(double(x.size(-1)));  // [T, 1]
  // What is near zero beside a NaN or an infinity cannot be said.
  const auto near_zero = (x.abs() <= near).to(at::kDouble).masked_fill(~l2.isfinite().unsqueeze(-1), NAN);
  auto all = nlohmann::json{{"mean", number(x.mean().item<double>())},
                            {"std", number(x.std(/*unbiased=*/false).item<double>())},
                            {"min", number(x.min().item<double>())},
                            {"max", number(x.max().item<double>())},
                            {"near_zero", number(near_zero.mean().item<double>())},
                            {"l2", number(l2.mean().item<double>())}};
  return {{"mean", numbers(x.mean(-1))}, {"std", numbers(x.std(-1, /*unbiased=*/false))}, {"min", numbers(x.amin(-1))},
          {"max", numbers(x.amax(-1))},  {"near_zero", numbers(near_zero.mean(-1))},      {"l2", numbers(l2)},
          {"all", std::move(all)}};
}

nlohmann::json shares(const at::Tensor& x_in) {
  const auto every = x_in.to(at::kDouble).flatten();
  const auto x = every.masked_select(every.isfinite());
  const auto least = [&] { return x.numel() ? x.min().item<double>() : NAN; };
  const auto most = [&] { return x.numel() ? x.max().item<double>() : NAN; };
  const auto bins = (x * double(kBins)).floor().clamp(0, kBins - 1).to(at::kLong);
  const auto counts = at::bincount(bins, {}, kBins);
  auto histogram = nlohmann::json::array();
  for (int64_t i = 0; i < kBins; ++i) histogram.push_back(counts[i].item<int64_t>());
  return {{"mean", number(x.mean().item<double>())},
          {"min", number(least())},
          {"max", number(most())},
          {"below_tenth", number((x < 0.1).to(at::kDouble).mean().item<double>())},
          {"histogram", std::move(histogram)}};
}

at::Tensor cosines(const at::Tensor& x, const at::Tensor& y) {
  const auto product = x.norm(2, {-1}) * y.norm(2, {-1});
  return at::where(product == 0, at::zeros_like(product), (x * y).sum(-1) / product);
}

nlohmann::json most_probable(const at::Tensor& p, int64_t count) {
  count = std::min<int64_t>(count, p.numel());
  // A NaN has no place: it is the last. Of equal ones the first id comes first, as in generation; topk takes any of
  // them.
  const auto ranked = at::where(p.isfinite(), p, at::full_like(p, -1)).to(at::kDouble).contiguous();
  const auto least = std::get<0>(ranked.topk(count)).min().item<double>();
  const auto* data = ranked.const_data_ptr<double>();
  std::vector<std::pair<double, int64_t>> found;
  for (int64_t id = 0; id < ranked.numel(); ++id) {
    if (data[id] >= least) found.emplace_back(-data[id], id);
  }
  std::sort(found.begin(), found.end());
  found.resize(static_cast<size_t>(count));
  auto list = nlohmann::json::array();
  for (const auto& [_, id] : found) list.push_back({{"id", id}, {"p", number(p[id].item<double>())}});
  return list;
}

}  // namespace lockstep::inspect
