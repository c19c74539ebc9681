// The primitives that every forward is made of. One small object decides how they are computed, so that a run, the
// truth, the index-order run and a hypothesis are the same model code.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <utility>

#include "nn/module.h"

namespace lockstep {

/// In which order sums are taken. hf: the operations that Hugging Face calls, as they block and vectorise. plain: the
/// textbook formulas, for float64. index: one term after the other, float32 accumulators, and nothing fused: sigmoid is
/// rounded before it is multiplied, 1 + w before it is used, as simple engines do (MLX does both in bfloat16).
enum class Order { hf, plain, index };

/// The base class is Hugging Face's arithmetic. A hypothesis overrides one primitive; `at` says for which module it is
/// called. No family file names a fault.
class Arithmetic {
 public:
  explicit Arithmetic(at::ScalarType up = at::kFloat, Order order = Order::hf) : up(up), order(order) {}
  virtual ~Arithmetic() = default;

  const at::ScalarType up;  // where HF hard-codes float32
  const Order order;
  at::Tensor upcast(const at::Tensor& x) const { return x.to(up); }

  // Sums.
  virtual at::Tensor linear(const Module& at, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor* bias) const;
  at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) const;
  at::Tensor sum(const at::Tensor& x, int64_t dim) const;  // keeps no dim
  at::Tensor mean_square(const at::Tensor& x) const;       // over the last dim, kept
  at::Tensor softmax(const at::Tensor& scores) const;      // over the last dim, upcast

  /// A number of the config or of HF's code where it is used: "eps", "l2_eps", "scale", "delta_scale".
  virtual double number(const Module&, const char* /*name*/, double config) const { return config; }

  // Norms.
  virtual at::Tensor rms_normalized(const Module& at, const at::Tensor& x, double eps) const;
  /// What a norm multiplies with: w, or 1 + w of a zero-centred norm.
  virtual at::Tensor norm_scale(const Module& at, const at::Tensor& weight, bool zero_centred) const;
  virtual at::Tensor l2norm(const Module& at, const at::Tensor& x) const;

  // Pointwise.
  virtual at::Tensor silu(const Module& at, const at::Tensor& x) const;
  virtual at::Tensor gate(const Module& at, const at::Tensor& x, const at::Tensor& gate) const;  // x * sigmoid(gate)
  virtual at::Tensor residual(const Module& at, const at::Tensor& stream, const at::Tensor& x) const;

  // Heads and positions.
  virtual at::Tensor repeat_heads(const Module& at, const at::Tensor& x, int64_t times, int64_t dim) const;
  /// [B, T, H * 2 * K] -> query and gate, [B, T, H, K] each: every head's rows are [query, gate].
  virtual std::pair<at::Tensor, at::Tensor> split_pair(const Module& at, const at::Tensor& x, int64_t head_dim) const;
  /// Rotates the first cos.size(-1) dims of x [B, H, T, K], split halves; the rest pass.
  virtual at::Tensor rotate(const Module& at, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                            bool partial) const;
  virtual at::Tensor inv_freq(const Module&, const at::Tensor& formula) const { return formula; }
  /// [3, B, T] where the family has three rows, else [B, T].
  virtual at::Tensor positions(const Module&, const at::Tensor& positions) const { return positions; }
  virtual std::pair<at::Tensor, at::Tensor> tables(const Module&, const at::Tensor& cos, const at::Tensor& sin) const {
    return {cos, sin};
  }

  // Full attention: which keys a query sees, bool [B or 1, 1, T, past + T].
  virtual at::Tensor visible(const Module&, const at::Tensor& mask) const { return mask; }
  /// Does visible() change anything for this module? Then attention is the formula itself: only that has such a mask.
  virtual bool changes_visible(const Module&) const { return false; }

  // Gated delta rule.
  virtual at::Tensor conv(const Module& at, const at::Tensor& context, const at::Tensor& weight, int64_t padding) const;
  virtual at::Tensor beta(const Module& at, const at::Tensor& b) const;
  virtual at::Tensor decay(const Module& at, const at::Tensor& A_log, const at::Tensor& a,
                           const at::Tensor& dt_bias) const;
  /// Token by token also where HF goes by chunks.
  virtual bool recurrent(const Module&) const { return order != Order::hf; }
  /// Are the steps of the recurrent rule the formula's, so that a loop over numbers may replace them?
  virtual bool plain_steps() const { return order != Order::index; }
  virtual at::Tensor decay_state(const Module& at, const at::Tensor& state, const at::Tensor& g) const;
  /// What a token writes: beta (v - S^T k).
  virtual at::Tensor delta(const Module& at, const at::Tensor& value, const at::Tensor& memory,
                           const at::Tensor& beta) const;
  /// Chunks only: the keys that meet the state handed over, k beta exp(cumulated decay).
  virtual at::Tensor decayed_keys(const Module& at, const at::Tensor& k_beta, const at::Tensor& cum_decay) const;
  /// The state that a forward begins with, or undefined; and the one that it leaves.
  virtual at::Tensor state_in(const Module&, const at::Tensor& state) const { return state; }
  virtual at::Tensor state_out(const Module&, const at::Tensor& state) const { return state; }
  virtual at::Tensor gated_norm(const Module& at, const at::Tensor& normed, const at::Tensor& gate) const;
  /// The padding mask of the linear layers, or undefined.
  virtual at::Tensor recurrent_mask(const Module&, const at::Tensor& mask) const { return mask; }
};

/// Hugging Face's own.
const Arithmetic& hf_arithmetic();

/// at::linear(x, weight) in the bits that it has for a weight that wants a gradient, as Hugging Face's do: then torch
/// folds the rows of a batch into one product also where they do not lie side by side, like the last positions that the
/// head is run on; else it would multiply row by row, in other bits.
at::Tensor hf_linear(const at::Tensor& x, const at::Tensor& weight);

}  // namespace lockstep
