#include "nn/one_row.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

namespace lockstep {

namespace {

constexpr int64_t kBlock = 64;       // rows
constexpr size_t kLeast = 2 << 20;   // bytes of a weight that is worth waking a thread for
constexpr size_t kLarge = 64 << 20;  // bytes of one that is tried as it is

/// A block of rows whose sums cancel: a half of each row is minus the other, over 24 powers of two, so that what is
/// left is nothing but the rounding of the order in which the terms were added. (Ordinary numbers hide another order in
/// bfloat16: one result in some thousands changes.) Made without torch's generator, which is the user's.
at::Tensor cancelling(int64_t inner, at::ScalarType dtype) {
  const auto half = inner / 2;
  const auto seed = at::arange(kBlock, at::kFloat).unsqueeze(1) * 0.618034f + at::arange(half, at::kFloat) * 0.754878f;
  const auto terms = (seed * 12.9898f).sin() * at::exp2((seed * 78.233f).sin() * 12.0f);
  auto w = at::zeros({kBlock, inner}, dtype);
  w.narrow(1, 0, half).copy_(terms);
  w.narrow(1, half, half).copy_(-w.narrow(1, 0, half));
  return w;
}

}  // namespace

namespace one_row {

bool splits(const at::Tensor& x, const at::Tensor& weight) {
  const auto dtype = weight.scalar_type();
  return (dtype == at::kFloat || dtype == at::kBFloat16) && x.scalar_type() == dtype && x.dim() > 0 &&
         x.numel() == x.size(-1) && weight.nbytes() >= kLeast && weight.size(0) >= 2 * kBlock &&
         weight.size(0) % kBlock == 0 && weight.is_contiguous() && x.is_contiguous() && at::get_num_threads() > 1 &&
         !at::in_parallel_region() && !c10::impl::TorchDispatchModeTLS::any_modes_set();
}

at::Tensor in_parts(const at::Tensor& x, const at::Tensor& weight, int64_t parts) {
  const auto rows = weight.size(0), blocks = (rows + kBlock - 1) / kBlock;
  const auto row = x.detach().view({1, -1}), w = weight.detach();
  const auto out = at::empty({1, rows}, row.options());
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    at::NoGradGuard no_grad;  // each thread has its own mode
    for (int64_t part = begin; part < end; ++part) {
      const auto first = blocks * part / parts * kBlock, last = std::min(rows, blocks * (part + 1) / parts * kBlock);
      if (first == last) continue;
      auto y = out.narrow(1, first, last - first);
      at::mm_out(y, row, w.narrow(0, first, last - first).t());
    }
  });
  auto sizes = x.sizes().vec();
  sizes.back() = rows;
  return out.view(sizes);
}

bool keeps_bits(const at::Tensor& weight, int64_t parts) {
  static std::mutex mutex;
  static std::map<std::tuple<at::ScalarType, int64_t, int64_t, int64_t>, bool> seen;
  const auto rows = weight.size(0), inner = weight.size(1);
  const std::tuple key{weight.scalar_type(), rows, inner, parts};
  const std::lock_guard lock(mutex);
  if (const auto it = seen.find(key); it != seen.end()) return it->second;
  auto same = [&](const at::Tensor& x, const at::Tensor& w) {
    return at::equal(at::linear(x, w), in_parts(x, w, parts));
  };
  bool keeps = true;
  if (weight.nbytes() < kLarge && rows % kBlock == 0) {
    const auto noise = cancelling(inner, weight.scalar_type()).repeat({rows / kBlock, 1});
    keeps = same(at::ones({1, inner}, weight.options()), noise);
  } else {
    for (const double step : {0.7, 1.1}) {
      const auto x = at::arange(inner, at::kFloat).mul(step).sin().to(weight.scalar_type());
      keeps = keeps && same(x.unsqueeze(0), weight.detach());
    }
  }
  return seen[key] = keeps;
}

}  // namespace one_row

at::Tensor hf_linear(const at::Tensor& x, const at::Tensor& weight) {
  // torch folds the rows of a batch into one product if they lie side by side or the weight wants a gradient, as
  // Hugging Face's do; else it multiplies row by row, in other bits. The last positions of a batch do not lie side by
  // side.
  if (!one_row::splits(x, weight)) return at::linear(x.contiguous(), weight);
  const int64_t parts = at::get_num_threads();
  return one_row::keeps_bits(weight, parts) ? one_row::in_parts(x, weight, parts) : at::linear(x, weight);
}

}  // namespace lockstep
