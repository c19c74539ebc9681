#include "verify/drawn.h"

#include <ATen/CPUGeneratorImpl.h>

namespace lockstep {

Drawn::Drawn(uint64_t seed)
    : Arithmetic(at::kFloat, Order::index), generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}

at::Tensor Drawn::drawn(const at::Tensor& x) const {
  if (x.scalar_type() != at::kBFloat16 && x.scalar_type() != at::kHalf) return x;
  const double half_spacing = x.scalar_type() == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
  const auto exact = x.to(at::kFloat);
  const auto noise = at::empty_like(exact).uniform_(-half_spacing, half_spacing, generator_);
  return (exact * (noise + 1.0)).to(x.scalar_type());
}

at::Tensor Drawn::linear(const Module& at, const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor* bias) const {
  return drawn(Arithmetic::linear(at, x, weight, bias));
}

at::Tensor Drawn::l2norm(const Module& at, const at::Tensor& x) const { return drawn(Arithmetic::l2norm(at, x)); }

at::Tensor Drawn::silu(const Module& at, const at::Tensor& x) const { return drawn(Arithmetic::silu(at, x)); }

at::Tensor Drawn::conv(const Module& at, const at::Tensor& context, const at::Tensor& weight, int64_t padding) const {
  return drawn(Arithmetic::conv(at, context, weight, padding));
}

at::Tensor Drawn::beta(const Module& at, const at::Tensor& b) const { return drawn(Arithmetic::beta(at, b)); }

at::Tensor Drawn::rotate(const Module& at, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                         bool partial) const {
  return drawn(Arithmetic::rotate(at, x, cos, sin, partial));
}

}  // namespace lockstep
