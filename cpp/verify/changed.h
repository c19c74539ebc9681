// Hugging Face's arithmetic with one change: what a hypothesis is made of.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "nn/arithmetic.h"
#include "verify/evaluator.h"

namespace lockstep {

using Tensors = std::map<std::string, at::Tensor>;  // a sublayer's parameters by full name

/// What differs from Hugging Face's arithmetic; an empty member changes nothing.
struct Change {
  using Unary = std::function<at::Tensor(const Arithmetic&, const Module&, const at::Tensor&)>;
  using Binary = std::function<at::Tensor(const Arithmetic&, const Module&, const at::Tensor&, const at::Tensor&)>;
  using Pair = std::pair<at::Tensor, at::Tensor>;

  std::string number, module;  // a number of that name, used by modules whose path ends in `module`
  std::optional<double> value;
  std::function<double(double config)> value_of;  // of the config's, where no value is stated
  std::function<at::Tensor(const Arithmetic&, const Module&, const at::Tensor& x, double eps)> rms_normalized;
  std::function<at::Tensor(const Arithmetic&, const Module&, const at::Tensor& w, bool zero_centred)> norm_scale;
  Unary l2norm, silu, inv_freq, positions, visible, beta, state_in, state_out, recurrent_mask;
  Binary gate, residual, decayed_keys, gated_norm;
  std::function<at::Tensor(const Module&, const at::Tensor& x, int64_t times, int64_t dim)> repeat_heads;
  std::function<Pair(const Module&, const at::Tensor& x, int64_t head_dim)> split_pair;
  std::function<at::Tensor(const Module&, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin)> rotate;
  std::function<Pair(const at::Tensor& cos, const at::Tensor& sin)> tables;
  std::function<at::Tensor(const Arithmetic&, const at::Tensor& A_log, const at::Tensor& a, const at::Tensor& dt_bias)>
      decay;
  std::function<at::Tensor(const at::Tensor& value, const at::Tensor& memory, const at::Tensor& beta)> delta;
  bool by_chunks = false;  // the rule goes by chunks also where it need not
  std::function<void(Tensors&)> weights;
  std::function<void(Given&)> given;
};

/// Hugging Face's arithmetic with one change, for modules at or below `scope`.
class Changed final : public Arithmetic {
 public:
  Changed(Change change, std::string scope, at::ScalarType up, Order order)
      : Arithmetic(up, order), change_(std::move(change)), scope_(std::move(scope)) {}
  /// The config's value of the changed number, once it has been asked for.
  std::optional<double> config() const { return config_; }

  double number(const Module& at, const char* name, double config) const override;
  at::Tensor rms_normalized(const Module& at, const at::Tensor& x, double eps) const override;
  at::Tensor norm_scale(const Module& at, const at::Tensor& weight, bool zero_centred) const override;
  at::Tensor l2norm(const Module& at, const at::Tensor& x) const override;
  at::Tensor silu(const Module& at, const at::Tensor& x) const override;
  at::Tensor gate(const Module& at, const at::Tensor& x, const at::Tensor& gate) const override;
  at::Tensor residual(const Module& at, const at::Tensor& stream, const at::Tensor& x) const override;
  at::Tensor repeat_heads(const Module& at, const at::Tensor& x, int64_t times, int64_t dim) const override;
  Change::Pair split_pair(const Module& at, const at::Tensor& x, int64_t head_dim) const override;
  at::Tensor rotate(const Module& at, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                    bool partial) const override;
  at::Tensor inv_freq(const Module& at, const at::Tensor& formula) const override;
  at::Tensor positions(const Module& at, const at::Tensor& positions) const override;
  Change::Pair tables(const Module& at, const at::Tensor& cos, const at::Tensor& sin) const override;
  at::Tensor visible(const Module& at, const at::Tensor& mask) const override;
  bool changes_visible(const Module& at) const override { return change_.visible && here(at); }
  at::Tensor beta(const Module& at, const at::Tensor& b) const override;
  at::Tensor decay(const Module& at, const at::Tensor& A_log, const at::Tensor& a,
                   const at::Tensor& dt_bias) const override;
  /// A changed step is seen only token by token: chunks solve for all of theirs at once.
  bool recurrent(const Module& at) const override {
    return (change_.delta && here(at)) || (!change_.by_chunks && Arithmetic::recurrent(at));
  }
  bool plain_steps() const override { return !change_.delta && Arithmetic::plain_steps(); }
  at::Tensor delta(const Module& at, const at::Tensor& value, const at::Tensor& memory,
                   const at::Tensor& beta) const override;
  at::Tensor decayed_keys(const Module& at, const at::Tensor& k_beta, const at::Tensor& cum_decay) const override;
  at::Tensor state_in(const Module& at, const at::Tensor& state) const override;
  at::Tensor state_out(const Module& at, const at::Tensor& state) const override;
  at::Tensor gated_norm(const Module& at, const at::Tensor& normed, const at::Tensor& gate) const override;
  at::Tensor recurrent_mask(const Module& at, const at::Tensor& mask) const override;

 private:
  bool here(const Module& at) const { return at.path().compare(0, scope_.size(), scope_) == 0; }
  const Change change_;
  const std::string scope_;
  mutable std::optional<double> config_;
};

}  // namespace lockstep
