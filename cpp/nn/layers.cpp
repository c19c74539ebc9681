#include "nn/layers.h"

namespace lockstep {

Linear::Linear(Module* parent, const std::string& name, int64_t in, int64_t out, bool with_bias)
    : Module(parent, name), weight(parameter("weight", {out, in})) {
  if (with_bias) bias = &parameter("bias", {out});
}

at::Tensor Linear::forward(Run&, const at::Tensor& x) {
  return bias ? at::linear(x, weight, *bias) : at::linear(x, weight);
}

Embedding::Embedding(Module* parent, const std::string& name, int64_t vocab, int64_t dim)
    : Module(parent, name), weight(parameter("weight", {vocab, dim})) {}

at::Tensor Embedding::forward(Run&, const at::Tensor& ids) { return at::embedding(weight, ids); }

at::Tensor SiLU::forward(Run&, const at::Tensor& x) { return at::silu(x); }

namespace {
/// x * rsqrt(mean(x^2) + eps) over the last dimension, in x's dtype.
at::Tensor rms_normalized(const at::Tensor& x, double eps) {
  const auto variance = x.pow(2).mean(-1, /*keepdim=*/true);
  return x * at::rsqrt(variance + eps);
}
}  // namespace

RMSNorm::RMSNorm(Module* parent, const std::string& name, int64_t dim, double eps)
    : Module(parent, name), weight(parameter("weight", {dim})), eps(eps) {}

at::Tensor RMSNorm::forward(Run& run, const at::Tensor& x) {
  return weight * rms_normalized(run.upcast(x), eps).to(x.scalar_type());
}

OffsetRMSNorm::OffsetRMSNorm(Module* parent, const std::string& name, int64_t dim, double eps)
    : Module(parent, name), weight(parameter("weight", {dim})), eps(eps) {}

at::Tensor OffsetRMSNorm::forward(Run& run, const at::Tensor& x) {
  const auto normed = rms_normalized(run.upcast(x), eps);
  return (normed * (run.upcast(weight) + 1.0)).type_as(x);
}

GatedRMSNorm::GatedRMSNorm(Module* parent, const std::string& name, int64_t dim, double eps)
    : Module(parent, name), weight(parameter("weight", {dim})), eps(eps) {}

at::Tensor GatedRMSNorm::forward(Run& run, const at::Tensor& x, const at::Tensor& gate) {
  const auto dtype = x.scalar_type();
  auto h = weight * rms_normalized(run.upcast(x), eps).to(dtype);
  h = h * at::silu(run.upcast(gate));
  return h.to(dtype);
}

SwiGLU::SwiGLU(Module* parent, const std::string& name, int64_t hidden, int64_t intermediate, bool with_bias)
    : Module(parent, name),
      gate_proj(this, "gate_proj", hidden, intermediate, with_bias),
      up_proj(this, "up_proj", hidden, intermediate, with_bias),
      down_proj(this, "down_proj", intermediate, hidden, with_bias),
      act_fn(this, "act_fn") {}

at::Tensor SwiGLU::forward(Run& run, const at::Tensor& x) {
  const auto gate = run(act_fn, run(gate_proj, x));
  run.capture(*this, "gate", gate);
  const auto activation = gate * run(up_proj, x);
  run.capture(*this, "activation", activation);
  return run(down_proj, activation);
}

}  // namespace lockstep
