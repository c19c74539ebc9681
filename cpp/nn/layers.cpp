#include "nn/layers.h"

namespace lockstep {

Linear::Linear(Module* parent, const std::string& name, int64_t in, int64_t out, bool with_bias)
    : Module(parent, name), weight(parameter("weight", {out, in})) {
  if (with_bias) bias = &parameter("bias", {out});
}

at::Tensor Linear::forward(Run& run, const at::Tensor& x) { return run.arithmetic.linear(*this, x, weight, bias); }

Embedding::Embedding(Module* parent, const std::string& name, int64_t vocab, int64_t dim)
    : Module(parent, name), weight(parameter("weight", {vocab, dim})) {}

at::Tensor Embedding::forward(Run&, const at::Tensor& ids) { return at::embedding(weight, ids); }

at::Tensor SiLU::forward(Run& run, const at::Tensor& x) { return run.arithmetic.silu(*this, x); }

namespace {
/// x * rsqrt(mean(x^2) + eps) over the last dimension, upcast.
at::Tensor rms_normalized(const Run& run, const Module& at, const at::Tensor& x, double eps) {
  return run.arithmetic.rms_normalized(at, run.upcast(x), run.arithmetic.number(at, "eps", eps));
}
}  // namespace

RMSNorm::RMSNorm(Module* parent, const std::string& name, int64_t dim, double eps)
    : Module(parent, name), weight(parameter("weight", {dim})), eps(eps) {}

at::Tensor RMSNorm::forward(Run& run, const at::Tensor& x) {
  const auto normed = rms_normalized(run, *this, x, eps).to(x.scalar_type());
  return run.arithmetic.norm_scale(*this, weight, /*zero_centred=*/false) * normed;
}

OffsetRMSNorm::OffsetRMSNorm(Module* parent, const std::string& name, int64_t dim, double eps)
    : Module(parent, name), weight(parameter("weight", {dim})), eps(eps) {}

at::Tensor OffsetRMSNorm::forward(Run& run, const at::Tensor& x) {
  const auto normed = rms_normalized(run, *this, x, eps);
  return (normed * run.arithmetic.norm_scale(*this, weight, /*zero_centred=*/true)).type_as(x);
}

GatedRMSNorm::GatedRMSNorm(Module* parent, const std::string& name, int64_t dim, double eps)
    : Module(parent, name), weight(parameter("weight", {dim})), eps(eps) {}

at::Tensor GatedRMSNorm::forward(Run& run, const at::Tensor& x, const at::Tensor& gate) {
  const auto dtype = x.scalar_type();
  const auto normed = rms_normalized(run, *this, x, eps).to(dtype);
  const auto scaled = run.arithmetic.norm_scale(*this, weight, /*zero_centred=*/false) * normed;
  return run.arithmetic.gated_norm(*this, scaled, gate).to(dtype);
}

SwiGLU::SwiGLU(Module* parent, const std::string& name, int64_t hidden, int64_t intermediate, bool with_bias)
    : Module(parent, name),
      gate_proj(this, "gate_proj", hidden, intermediate, with_bias),
      up_proj(this, "up_proj", hidden, intermediate, with_bias),
      down_proj(this, "down_proj", intermediate, hidden, with_bias),
      act_fn(this, "act_fn") {}

at::Tensor SwiGLU::forward(Run& run, const at::Tensor& x) {
  const auto gate = run.capture(*this, "gate", run(act_fn, run(gate_proj, x)));
  const auto activation = run.capture(*this, "activation", gate * run(up_proj, x));
  return run(down_proj, activation);
}

}  // namespace lockstep
