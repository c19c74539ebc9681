// What one forward looks like from inside: the residual stream, what each sublayer wrote into it, gates, attention,
// states and neurons, as numbers. The captures come from the mirror or from anybody who names them alike.
#pragma once

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/mirror.h"
#include "nn/recorder.h"

namespace lockstep::inspect {

/// The seven captures of a layer, in the order of its forward.
constexpr int kCaptures = 7;

/// Collects the captures of one forward of a single sequence and tells of them. Weights (final norm, head, down_proj)
/// are the mirror's.
class Inspection final : public Recorder {
 public:
  /// ids [1, T]; `token` is whose vector is followed as it is written, negative from the end. Raises InputError for
  /// another shape and a token that is not there.
  Inspection(const Mirror& mirror, const at::Tensor& ids, int64_t token = -1);

  void record(const std::string& point, const at::Tensor& value) override;

  /// All of it. logits: the last position's [V], or [..., V]; target: the token whose probability is followed, or the
  /// most probable one. Once: what is not needed beside other prompts is let go. Raises InputError naming a capture
  /// that never came.
  nlohmann::json finish(const at::Tensor& logits, const std::optional<int64_t>& target);

  /// down_proj's input of one neuron at the last position. Raises InputError for a layer or neuron that is not there.
  double activation(int64_t layer, int64_t neuron) const;
  /// The last token's stream: after the embedding (0), after layer depth - 1. float64 [D]
  at::Tensor last_stream(int64_t depth) const { return streams_.at(static_cast<size_t>(depth)).select(0, -1); }
  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
  int64_t last_id() const { return last_id_; }

 private:
  struct Layer {
    std::string mixer;  // linear_attn or self_attn, once it has run
    nlohmann::json captures[kCaptures];
    at::Tensor before, mixed;         // [T, D] float64: the stream, and with the mixer's output
    nlohmann::json deltas[2];         // of mixer and mlp
    at::Tensor activation;            // [F] float64, last position
    at::Tensor gate, q_rope, k_rope;  // full attention
    at::Tensor decay, beta, state;    // gated delta rule
  };
  void embedding(const at::Tensor& value);
  void captured(Layer& layer, int index, const at::Tensor& value);
  void wrote(Layer& layer, int sublayer, const at::Tensor& delta, const at::Tensor& stream);
  void follow(const at::Tensor& stream);  // the token's vector after one more write
  void complete() const;
  nlohmann::json depth() const;
  nlohmann::json lens(const at::Tensor& probabilities, int64_t answer, int64_t target) const;
  nlohmann::json sum_check() const;
  nlohmann::json writes(const at::Tensor& normed) const;
  nlohmann::json mixer(const Layer& layer) const;
  at::Tensor head_on(const at::Tensor& rows, at::Tensor* normed) const;

  const Mirror& mirror_;
  const int64_t tokens_, token_, last_id_;
  at::ScalarType dtype_ = at::kFloat;
  std::vector<Layer> layers_;
  std::vector<at::Tensor> streams_;    // after the embedding and each layer, [T, D] float64
  std::vector<at::Tensor> last_rows_;  // their last row as it was, in the run's dtype
  std::vector<at::Tensor> followed_;   // one token's vector after every write, [D] float64
  at::Tensor sum_, largest_;           // embedding + all deltas [T, D]; the largest norm on the way [T]; float64
};

/// Several prompts that end in the same token: how far apart their streams are at it, by depth. Raises InputError for
/// fewer than two, other models and other last tokens.
nlohmann::json meaning(const std::vector<const Inspection*>& prompts);

/// {p of `target`, top: the three most probable}. logits [..., V], the last row counts.
nlohmann::json next_token(const at::Tensor& logits, int64_t target);

// The parts, each in its own file.

/// Gates and attention of a full-attention layer: gate [B, T, H * K] or undefined, q_rope [1, H, T, K], k_rope [1, G,
/// T, K].
nlohmann::json full_attention(const at::Tensor& gate, const at::Tensor& q_rope, const at::Tensor& k_rope);
/// decay (its logarithm, as the rule has it) and beta [1, T, Hv]; state [1, Hv, Dk, Dv] after the last token, or
/// undefined.
nlohmann::json delta_rule(const at::Tensor& log_decay, const at::Tensor& beta, const at::Tensor& state);

/// The direct contribution of every MLP neuron to a token, by layer. activations: down_proj's input at the last
/// position, [F] float64 each; rms: of the final stream.
nlohmann::json neurons(const Mirror& mirror, const std::vector<at::Tensor>& activations, int64_t target, double rms);
/// The final norm's scale [D] float64: w, or 1 + w where the norm is zero-centred.
at::Tensor final_scale(const Mirror& mirror);
/// A Linear's weight by its module path.
const at::Tensor& weight_of(const Mirror& mirror, const std::string& path);

}  // namespace lockstep::inspect
