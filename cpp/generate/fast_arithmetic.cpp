#include "generate/fast_arithmetic.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/tensor_text.h"

// One build for every machine: the loader picks.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define LOCKSTEP_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define LOCKSTEP_CLONES
#endif

namespace lockstep {

namespace {

constexpr int kLanes = 8, kRows = 4;  // rows at a time: so many streams a core must read for memory to keep up
constexpr int64_t kAhead = 8192;      // weights: memory is asked for a line so far before its turn
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Bits = uint32_t __attribute__((vector_size(4 * kLanes)));

/// y[r] = sum_k x[k] w[r][k] for r in [begin, end): w [N, K] bfloat16, x's elements of even and of odd index apart, as
/// a bfloat16 is the upper half of a float32 and two of them are one word.
LOCKSTEP_CLONES void multiply(const uint16_t* w, const float* even, const float* odd, float* y, int64_t begin,
                              int64_t end, int64_t K) {
  for (int64_t r = begin; r < end; r += kRows) {
    const uint16_t* row[kRows];
    Floats sums[2 * kRows] = {};
    for (int i = 0; i < kRows; ++i) row[i] = w + std::min(r + i, end - 1) * K;
    int64_t k = 0;
    for (; k + 2 * kLanes <= K; k += 2 * kLanes) {
      Floats x0, x1;
      std::memcpy(&x0, even + k / 2, sizeof x0), std::memcpy(&x1, odd + k / 2, sizeof x1);
      for (int i = 0; i < kRows; ++i) {
        Bits pairs;
        std::memcpy(&pairs, row[i] + k, sizeof pairs);
        if (k % 32 == 0) __builtin_prefetch(row[i] + k + kAhead);
        sums[2 * i] += x0 * (Floats)(pairs << 16), sums[2 * i + 1] += x1 * (Floats)(pairs & 0xffff0000u);
      }
    }
    for (int i = 0; i < kRows && r + i < end; ++i) {
      float sum = 0;
      for (int64_t j = k; j < K; ++j) {
        const uint32_t bits = uint32_t{row[i][j]} << 16;
        float weight;
        std::memcpy(&weight, &bits, sizeof weight);
        sum += (j % 2 ? odd : even)[j / 2] * weight;
      }
      for (int lane = 0; lane < kLanes; ++lane) sum += sums[2 * i][lane] + sums[2 * i + 1][lane];
      y[r + i] = sum;
    }
  }
}

}  // namespace

at::Tensor multiply_stored(const at::Tensor& weight, const at::Tensor& row) {
  const auto N = weight.size(0), K = weight.size(1);
  const auto even = row.slice(0, 0, K, 2).contiguous(), odd = row.slice(0, 1, K, 2).contiguous();
  auto y = at::empty({N}, at::kFloat);
  const auto* w = static_cast<const uint16_t*>(weight.const_data_ptr());
  const auto *x0 = even.const_data_ptr<float>(), *x1 = odd.const_data_ptr<float>();
  auto* out = y.mutable_data_ptr<float>();
  constexpr int64_t kElements = 65536;  // that are worth a thread
  at::parallel_for(0, N, std::max<int64_t>(kRows, kElements / K),
                   [&](int64_t begin, int64_t end) { multiply(w, x0, x1, out, begin, end, K); });
  return y;
}

FastArithmetic::FastArithmetic(const Mirror& mirror) {
  at::ScalarType found = at::kFloat;
  for (const auto* p : mirror.parameters()) {
    const auto dtype = p->value.scalar_type();
    if (dtype != at::kFloat && dtype != at::kBFloat16)
      throw InputError(fmt::format("--fast: expected --dtype float32 or bfloat16, found {}", dtype_name(dtype)));
    if (p->shape.size() != 2 || p->name == kEmbedding) continue;
    auto stored = mirror.file_tensor(p->name);
    found = stored.scalar_type();
    if (found == at::kBFloat16) stored_.emplace(&p->value, std::move(stored));
  }
  if (stored_.empty()) {
    throw InputError(fmt::format("{}: --fast reads weights that are stored in bfloat16, found {}; leave out --fast",
                                 mirror.checkpoint().folder(), dtype_name(found)));
  }
}

at::Tensor FastArithmetic::linear(const Module& at, const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor* bias) const {
  const auto found = stored_.find(&weight);
  if (found == stored_.end() || x.numel() != x.size(-1)) return Arithmetic::linear(at, x, weight, bias);
  auto y = multiply_stored(found->second, x.reshape({-1}).to(at::kFloat));
  if (bias) y = y + bias->to(at::kFloat);
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return y.view(sizes).to(x.scalar_type());
}

}  // namespace lockstep
