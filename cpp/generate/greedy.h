// Greedy decoding over the caches: the calls that transformers' generate makes, in its order, so that the logits of
// every step are its logits bit for bit.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <optional>
#include <vector>

#include "models/causal_lm.h"
#include "nn/arithmetic.h"
#include "nn/cache.h"
#include "nn/run.h"

namespace lockstep {

/// One model's cached run over a batch, token by token, whoever chooses the tokens. mirrors transformers
/// GenerationMixin._prefill and prepare_inputs_for_generation
class Decoding {
 public:
  /// `model` and `arithmetic` must outlive it. `between` is called before each layer of a prompt and
  /// may throw.
  Decoding(CausalLM& model, const Variant& variant, Attn attn, const Arithmetic& arithmetic = hf_arithmetic(),
           std::function<void()> between = {});

  /// The whole prompt in one forward: ids [B, T], padded on the left where `mask` [B, T] is 0, or undefined. Logits
  /// [B, V] of the last position, the only one that the head is run on. Raises InputError for an empty prompt, ids
  /// outside the vocabulary, and a mask that is not left padding.
  at::Tensor prefill(const at::Tensor& ids, const at::Tensor& mask);
  /// One more token per row, [B] int64 -> logits [B, V]. After prefill().
  at::Tensor step(const at::Tensor& tokens);
  const Cache& cache() const { return cache_; }

 private:
  at::Tensor forward(const at::Tensor& ids);
  CausalLM& model_;
  const Variant variant_;
  const Attn attn_;
  const Arithmetic& arithmetic_;
  const std::function<void()> between_;
  Cache cache_;
  at::Tensor mask_;       // [B, past] or undefined: nothing is padded
  at::Tensor positions_;  // [B, T] of the next forward
};

struct GreedyOptions {
  std::vector<int64_t> stop;   // tokens that end a row
  std::optional<int64_t> pad;  // what a finished row is fed with; needed where there are stop tokens and several rows
  int64_t max_new_tokens = 0;
  int64_t min_new_tokens = 0;  // until then no stop token is chosen
  bool keep_logits = false;
};

/// What a step chose: `tokens` [B], pads of finished rows included, from `logits` [B, V] in the model's dtype.
struct GreedyStep {
  int64_t index;
  const at::Tensor& tokens;
  const at::Tensor& logits;
};

struct Generated {
  std::vector<std::vector<int64_t>> tokens;        // per row, its stop token included, no pads
  std::vector<bool> stopped;                       // per row: by a stop token, else by the length or the caller
  std::vector<at::Tensor> logits;                  // per step [B, V], if they were asked for
  int64_t steps = 0;                               // forwards: the prefill and one less than the longest row's tokens
  double prefill_seconds = 0, decode_seconds = 0;  // to the first token; from there on
};

/// The token of each row, [B] int64: the largest logit in float32, of equal ones the first; stop tokens are left out of
/// account while `suppressed`. mirrors torch.argmax in GenerationMixin._sample and MinNewTokensLengthLogitsProcessor
at::Tensor choose(const at::Tensor& logits, const std::vector<int64_t>& stop, bool suppressed);

/// Until every row has met a stop token or the length is reached, or `on_step` returns false. mirrors
/// GenerationMixin._sample with do_sample false.
Generated greedy(Decoding& decoding, const at::Tensor& ids, const at::Tensor& mask, const GreedyOptions& options,
                 const std::function<bool(const GreedyStep&)>& on_step = {});

}  // namespace lockstep
