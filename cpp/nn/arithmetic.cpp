#include "nn/arithmetic.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIndexing.h>

namespace lockstep {

using at::indexing::Ellipsis;
using at::indexing::None;
using at::indexing::Slice;

namespace {

constexpr double kL2Eps = 1e-6;

/// y[m] += x[m][k] * b[k] for k in order: each output is one accumulator, its terms in index order.
void index_rows(const float* a, const float* b, float* y, int64_t rows, int64_t inner, int64_t cols) {
  for (int64_t m = 0; m < rows; ++m) {
    float* out = y + m * cols;
    for (int64_t k = 0; k < inner; ++k) {
      const float factor = a[m * inner + k];
      const float* row = b + k * cols;
      for (int64_t n = 0; n < cols; ++n) out[n] += factor * row[n];
    }
  }
}

/// a [..., M, K] x b [..., K, N] in index order with float32 accumulators, in a's dtype.
at::Tensor index_matmul(const at::Tensor& a, const at::Tensor& b) {
  auto batch = at::infer_size(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  const auto M = a.size(-2), K = a.size(-1), N = b.size(-1);
  auto whole = [&](const at::Tensor& x, int64_t r, int64_t c) {
    auto sizes = batch;
    sizes.push_back(r), sizes.push_back(c);
    return x.to(at::kFloat).expand(sizes).reshape({-1, r, c}).contiguous();
  };
  const auto left = whole(a, M, K), right = whole(b, K, N);
  auto out = at::zeros({left.size(0), M, N}, at::kFloat);
  const auto* pa = left.const_data_ptr<float>();
  const auto* pb = right.const_data_ptr<float>();
  auto* py = out.mutable_data_ptr<float>();
  at::parallel_for(0, left.size(0) * M, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      index_rows(pa + row * K, pb + (row / M) * K * N, py + row * N, 1, K, N);
    }
  });
  batch.push_back(M), batch.push_back(N);
  return out.reshape(batch).to(a.scalar_type());
}

/// Sum over the last dim in index order, float32 accumulators, in x's dtype.
at::Tensor index_sum(const at::Tensor& x) {
  const auto values = x.to(at::kFloat).contiguous();
  const auto cols = values.size(-1), rows = cols ? values.numel() / cols : 0;
  auto out = at::zeros(values.sizes().slice(0, values.dim() - 1), at::kFloat);
  const auto* in = values.const_data_ptr<float>();
  auto* sums = out.mutable_data_ptr<float>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) sums[r] += in[r * cols + c];
  }
  return out.to(x.scalar_type());
}

at::Tensor rotate_half(const at::Tensor& x) {
  const auto half = x.size(-1) / 2;
  const auto x1 = x.index({Ellipsis, Slice(None, half)}), x2 = x.index({Ellipsis, Slice(half, None)});
  return at::cat({-x2, x1}, -1);
}

}  // namespace

const Arithmetic& hf_arithmetic() {
  static const Arithmetic hf;
  return hf;
}

at::Tensor hf_linear(const at::Tensor& x, const at::Tensor& weight) { return at::linear(x.contiguous(), weight); }

at::Tensor Arithmetic::linear(const Module&, const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor* bias) const {
  if (order != Order::index) return bias ? at::linear(x, weight, *bias) : hf_linear(x, weight);
  const auto product = index_matmul(x.reshape({-1, x.size(-1)}).to(at::kFloat), weight.t());
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  const auto y = bias ? product + bias->to(at::kFloat) : product;
  return y.reshape(sizes).to(x.scalar_type());
}

at::Tensor Arithmetic::matmul(const at::Tensor& a, const at::Tensor& b) const {
  return order == Order::index ? index_matmul(a, b) : at::matmul(a, b);
}

at::Tensor Arithmetic::sum(const at::Tensor& x, int64_t dim) const {
  return order == Order::index ? index_sum(x.movedim(dim, -1)) : x.sum(dim);
}

at::Tensor Arithmetic::mean_square(const at::Tensor& x) const {
  if (order != Order::index) return x.pow(2).mean(-1, /*keepdim=*/true);
  return (index_sum(x * x) / double(x.size(-1))).unsqueeze(-1);
}

at::Tensor Arithmetic::softmax(const at::Tensor& scores) const {
  if (order != Order::index) return at::softmax(scores, -1, up);
  const auto x = upcast(scores);
  const auto powers = (x - x.amax(-1, /*keepdim=*/true)).exp();
  return powers / index_sum(powers).unsqueeze(-1);
}

at::Tensor Arithmetic::rms_normalized(const Module&, const at::Tensor& x, double eps) const {
  return x * at::rsqrt(mean_square(x) + eps);
}

at::Tensor Arithmetic::norm_scale(const Module&, const at::Tensor& weight, bool zero_centred) const {
  if (!zero_centred) return weight;
  const auto scale = upcast(weight) + 1.0;
  return order == Order::index ? upcast(scale.to(weight.scalar_type())) : scale;
}

at::Tensor Arithmetic::l2norm(const Module& at, const at::Tensor& x) const {
  const auto square = order == Order::index ? index_sum(x * x).unsqueeze(-1) : (x * x).sum(-1, /*keepdim=*/true);
  return x * at::rsqrt(square + number(at, "l2_eps", kL2Eps));
}

at::Tensor Arithmetic::silu(const Module&, const at::Tensor& x) const {
  return order == Order::index ? x * at::sigmoid(x) : at::silu(x);
}

at::Tensor Arithmetic::gate(const Module&, const at::Tensor& x, const at::Tensor& gate) const {
  return x * at::sigmoid(gate);
}

at::Tensor Arithmetic::residual(const Module&, const at::Tensor& stream, const at::Tensor& x) const {
  return stream + x;
}

at::Tensor Arithmetic::repeat_heads(const Module&, const at::Tensor& x, int64_t times, int64_t dim) const {
  if (times == 1) return x;
  if (dim != 1) return x.repeat_interleave(times, dim);                   // as the linear layers do
  const auto B = x.size(0), G = x.size(1), S = x.size(2), K = x.size(3);  // as repeat_kv does
  return x.unsqueeze(2).expand({B, G, times, S, K}).reshape({B, G * times, S, K});
}

std::pair<at::Tensor, at::Tensor> Arithmetic::split_pair(const Module&, const at::Tensor& x, int64_t head_dim) const {
  const auto halves = x.view({x.size(0), x.size(1), -1, 2 * head_dim}).chunk(2, -1);
  return {halves[0], halves[1]};
}

at::Tensor Arithmetic::rotate(const Module&, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                              bool partial) const {
  if (!partial) return (x * cos) + (rotate_half(x) * sin);
  const auto rotary_dim = cos.size(-1);
  const auto rot = x.index({Ellipsis, Slice(None, rotary_dim)}), pass = x.index({Ellipsis, Slice(rotary_dim, None)});
  return at::cat({(rot * cos) + (rotate_half(rot) * sin), pass}, -1);
}

at::Tensor Arithmetic::conv(const Module&, const at::Tensor& context, const at::Tensor& weight, int64_t padding) const {
  return at::conv1d(context, weight, {}, /*stride=*/at::IntArrayRef{1}, at::IntArrayRef{padding}, at::IntArrayRef{1},
                    context.size(1));
}

at::Tensor Arithmetic::beta(const Module&, const at::Tensor& b) const { return b.sigmoid(); }

at::Tensor Arithmetic::decay(const Module&, const at::Tensor& A_log, const at::Tensor& a,
                             const at::Tensor& dt_bias) const {
  return -upcast(A_log).exp() * at::softplus(upcast(a) + dt_bias);
}

at::Tensor Arithmetic::decay_state(const Module&, const at::Tensor& state, const at::Tensor& g) const {
  return state * g.exp().unsqueeze(-1).unsqueeze(-1);
}

at::Tensor Arithmetic::delta(const Module&, const at::Tensor& value, const at::Tensor& memory,
                             const at::Tensor& beta) const {
  return (value - memory) * beta.unsqueeze(-1);
}

at::Tensor Arithmetic::decayed_keys(const Module&, const at::Tensor& k_beta, const at::Tensor& cum_decay) const {
  return k_beta * cum_decay.exp().unsqueeze(-1);
}

at::Tensor Arithmetic::gated_norm(const Module&, const at::Tensor& normed, const at::Tensor& gate) const {
  return normed * at::silu(upcast(gate));
}

}  // namespace lockstep
