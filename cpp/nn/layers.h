// The small modules that every family is made of: Linear, Embedding, SiLU, and the two RMSNorm conventions.
#pragma once

#include <ATen/ATen.h>

#include "nn/module.h"
#include "nn/run.h"

namespace lockstep {

/// y = x W^T + b. mirrors torch.nn.Linear
struct Linear : Module {
  Linear(Module* parent, const std::string& name, int64_t in, int64_t out, bool with_bias = false);
  at::Tensor forward(Run& run, const at::Tensor& x);
  at::Tensor apply(Run& run, const at::Tensor& x, const Context&) override { return forward(run, x); }
  const at::Tensor& weight;  // [out, in]
  const at::Tensor* bias = nullptr;
};

/// ids [B, T] -> [B, T, D]. mirrors torch.nn.Embedding
struct Embedding : Module {
  Embedding(Module* parent, const std::string& name, int64_t vocab, int64_t dim);
  at::Tensor forward(Run& run, const at::Tensor& ids);
  at::Tensor apply(Run& run, const at::Tensor& ids, const Context&) override { return forward(run, ids); }
  const at::Tensor& weight;  // [V, D]
};

/// mirrors transformers activations.ACT2FN["silu"]
struct SiLU : Module {
  using Module::Module;
  at::Tensor forward(Run& run, const at::Tensor& x);
  at::Tensor apply(Run& run, const at::Tensor& x, const Context&) override { return forward(run, x); }
};

/// w * norm(x), the product in the run's dtype. mirrors transformers modeling_llama.LlamaRMSNorm
struct RMSNorm : Module {
  RMSNorm(Module* parent, const std::string& name, int64_t dim, double eps);
  at::Tensor forward(Run& run, const at::Tensor& x);
  at::Tensor apply(Run& run, const at::Tensor& x, const Context&) override { return forward(run, x); }
  const at::Tensor& weight;  // [dim]
  const double eps;
};

/// (1 + w) * norm(x), all of it upcast. mirrors transformers modeling_qwen3_5.Qwen3_5RMSNorm
struct OffsetRMSNorm : Module {
  OffsetRMSNorm(Module* parent, const std::string& name, int64_t dim, double eps);
  at::Tensor forward(Run& run, const at::Tensor& x);
  at::Tensor apply(Run& run, const at::Tensor& x, const Context&) override { return forward(run, x); }
  const at::Tensor& weight;  // [dim]
  const double eps;
};

/// silu(gate) * (w * norm(x)): norm before gate. mirrors transformers modeling_qwen3_5.Qwen3_5RMSNormGated
struct GatedRMSNorm : Module {
  GatedRMSNorm(Module* parent, const std::string& name, int64_t dim, double eps);
  at::Tensor forward(Run& run, const at::Tensor& x, const at::Tensor& gate);
  const at::Tensor& weight;  // [dim]
  const double eps;
};

/// down(silu(gate(x)) * up(x)). mirrors transformers modeling_qwen3_5.Qwen3_5MLP and modeling_llama.LlamaMLP
struct SwiGLU : Module {
  SwiGLU(Module* parent, const std::string& name, int64_t hidden, int64_t intermediate, bool with_bias = false);
  at::Tensor forward(Run& run, const at::Tensor& x);
  at::Tensor apply(Run& run, const at::Tensor& x, const Context&) override { return forward(run, x); }
  Linear gate_proj;  // [F, D]
  Linear up_proj;    // [F, D]
  Linear down_proj;  // [D, F]
  SiLU act_fn;
};

}  // namespace lockstep
