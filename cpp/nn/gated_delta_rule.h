// The gated delta rule, S_t = exp(g_t) S_{t-1} (I - beta_t k_t k_t^T) + beta_t k_t v_t^T, by chunks of 64 tokens and
// token by token, as each release of transformers computes it.
//   B batch, T tokens, Hv value heads, Dk key dim, Dv value dim, C chunk, N chunks
#pragma once

#include <ATen/ATen.h>
#include <ATen/TensorIndexing.h>

#include "nn/module.h"
#include "nn/run.h"

namespace lockstep {

constexpr int64_t kDeltaRuleChunk = 64;  // tokens

struct DeltaRuleInputs {
  at::Tensor query, key;     // [B, T, Hv, Dk], heads already repeated to Hv
  at::Tensor value;          // [B, T, Hv, Dv]
  at::Tensor decay;          // g [B, T, Hv] float32, <= 0 (log space)
  at::Tensor beta;           // [B, T, Hv]
  at::Tensor initial_state;  // [B, Hv, Dk, Dv] or undefined (zero)
};

struct DeltaRuleOutputs {
  at::Tensor output;  // [B, T, Hv, Dv] in query's dtype
  at::Tensor state;   // [B, Hv, Dk, Dv] upcast
};

/// Many tokens at once; captures @q_l2 and @k_l2 at `module`.
/// mirrors transformers modeling_qwen3_5.torch_chunk_gated_delta_rule
DeltaRuleOutputs chunk_gated_delta_rule(Run& run, const Module& module, const DeltaRuleInputs& in);

/// Token by token; captures @q_l2 and @k_l2 at `module`.
/// mirrors transformers modeling_qwen3_5.torch_recurrent_gated_delta_rule
DeltaRuleOutputs recurrent_gated_delta_rule(Run& run, const Module& module, const DeltaRuleInputs& in);

}  // namespace lockstep
