// The parts of a model that the local check judges one by one, in execution order.
#pragma once

#include <string>
#include <vector>

#include "models/causal_lm.h"

namespace lockstep {

enum class Kind { embedding, rotary, norm, linear_attn, self_attn, mlp, layer, head };

struct Sublayer {
  std::string path;  // model.layers.3.mlp; of Kind::layer the layer itself: its own two sums and its wiring
  Kind kind;
  int64_t layer = -1;  // of what lies outside of the layers: -1
  /// Where its input may be recorded: its own, else what feeds it.
  std::vector<std::string> inputs;
  /// Is `point` inside of it (its own input and output too)?
  bool holds(const std::string& point) const;
};

std::vector<Sublayer> sublayers_of(const CausalLM& model);

/// The sublayer that holds `point` or `parameter`; empty path if none does.
Sublayer sublayer_of(const std::vector<Sublayer>& all, const std::string& point);

}  // namespace lockstep
