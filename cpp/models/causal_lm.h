// What every family offers: build from a config, bind weights, and run one forward in steps, so that a caller can hold
// each layer against another engine's as soon as it is done.
#pragma once

#include <ATen/ATen.h>
#include <ATen/TensorIndexing.h>

#include <functional>
#include <string>
#include <vector>

#include "core/config_reader.h"
#include "nn/cache.h"
#include "nn/module.h"
#include "nn/run.h"

namespace lockstep {

/// One forward's inputs. Raises InputError from check() for ids outside the vocabulary and shapes that do not fit.
struct Inputs {
  at::Tensor ids;        // [B, T] int64
  at::Tensor positions;  // [B, T], [3, B, T] or undefined: counted from the cache's length
  at::Tensor mask;       // [B, past + T] of 0 and 1, or undefined
};

/// What the config rules in or out, for coverage.
struct Mechanisms {
  std::vector<std::string> layer_types;  // linear_attention, full_attention
  int64_t vocab = 0, attention_heads = 0, key_value_heads = 0, head_dim = 0, rotary_dim = 0;
  int64_t linear_key_heads = 0, linear_value_heads = 0, conv_kernel = 0;  // 0: the family has none
  bool mrope = false;                                                     // three-row positions are taken
  bool mrope_rows = false;  // and rows other than the first reach some frequency
  bool output_gate = false;
};

class CausalLM : public Module {
 public:
  ~CausalLM() override = default;

  /// Between steps: what one step hands to the next.
  struct State {
    at::Tensor hidden_states;  // [B, T, D]
    Context context;
  };
  virtual State begin(Run& run, const Inputs& inputs) = 0;        // embedding, and the context
  virtual void layer(Run& run, State& state, int64_t index) = 0;  // one decoder layer
  virtual at::Tensor end(Run& run, State& state) = 0;             // final norm and head -> logits [B, T or kept, V]
  virtual int64_t layers() const = 0;
  /// The steps by number: -1 the embedding, 0 to layers() - 1 a layer, layers() final norm and head -> logits; of any
  /// other an undefined tensor.
  at::Tensor step(Run& run, State& state, const Inputs& inputs, int64_t index);
  /// Told of each step before it begins, and of layers() + 1 once the last is done: whoever keeps no weights in memory
  /// brings them, and takes them away.
  std::function<void(int64_t)> before_step;
  /// Masks, cos and sin of a forward whose hidden states have the dtype of `hidden_states` (any size); needs no weight.
  virtual Context context(Run& run, const at::Tensor& hidden_states, const Inputs& inputs) = 0;
  virtual const Mechanisms& mechanisms() const = 0;
  /// inv_freq [rotary_dim / 2] float32 by its formula.
  virtual at::Tensor inv_freq() const = 0;

  /// An empty cache for this model.
  Cache new_cache() const { return Cache(static_cast<size_t>(layers()), number_); }
  /// All steps at once: logits [B, T, V], or of run.logits_to_keep positions. The cache, if any, is advanced; one whose
  /// forward throws is spoiled. `between`, if any, is called before each layer and may throw.
  at::Tensor forward(Run& run, const Inputs& inputs, const std::function<void()>& between = {});
  /// Checks shapes, ids, mask and positions against the model, for a forward after `past` tokens, with a cache or none.
  void check(const Inputs& inputs, int64_t past, bool cached) const;
  /// The same against the cache itself, whose batch must be the inputs'.
  void check(const Inputs& inputs, const Cache* cache) const;

 protected:
  /// hidden_states [B, T, D] -> the rows that the head is run on: a view, as HF slices.
  static at::Tensor kept_positions(const Run& run, const at::Tensor& hidden_states);

 private:
  static int64_t next_number();
  const int64_t number_ = next_number();
};

}  // namespace lockstep
