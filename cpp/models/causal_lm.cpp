#include "models/causal_lm.h"

#include <fmt/format.h>

#include <atomic>

#include "core/error.h"
#include "core/tensor_text.h"

namespace lockstep {

at::Tensor CausalLM::forward(Run& run, const Inputs& inputs, const std::function<void()>& between) {
  State state;
  step(run, state, inputs, -1);
  if (run.cache) run.cache->spoiled = true;
  for (int64_t i = 0; i < layers(); ++i) {
    if (between) between();
    step(run, state, inputs, i);
  }
  const auto logits = step(run, state, inputs, layers());
  if (run.cache) run.cache->spoiled = false;
  return logits;
}

at::Tensor CausalLM::step(Run& run, State& state, const Inputs& inputs, int64_t index) {
  if (before_step) before_step(index);
  if (index == layers()) {
    auto logits = end(run, state);
    if (before_step) before_step(index + 1);
    return logits;
  }
  if (index < 0) {
    state = begin(run, inputs);
  } else {
    layer(run, state, index);
  }
  return {};
}

at::Tensor CausalLM::kept_positions(const Run& run, const at::Tensor& hidden_states) {
  return run.logits_to_keep ? hidden_states.slice(1, -run.logits_to_keep) : hidden_states;
}

int64_t CausalLM::next_number() {
  static std::atomic<int64_t> numbers{0};
  return ++numbers;
}

void CausalLM::check(const Inputs& inputs, int64_t past, bool cached) const {
  const auto& m = mechanisms();
  const auto& ids = inputs.ids;
  if (!ids.defined() || ids.dim() != 2 || ids.scalar_type() != at::kLong || ids.numel() == 0) {
    throw InputError(
        fmt::format("ids: expected int64 [B, T] with at least one token, found {}",
                    ids.defined() ? dtype_name(ids.scalar_type()) + " " + shape_text(ids.sizes()) : "nothing"));
  }
  const auto B = ids.size(0), T = ids.size(1);
  const auto low = ids.min().item<int64_t>(), high = ids.max().item<int64_t>();
  if (low < 0 || high >= m.vocab) {
    throw InputError(
        fmt::format("ids: expected 0 to {} (vocab_size {}), found {}", m.vocab - 1, m.vocab, low < 0 ? low : high));
  }
  if (inputs.positions.defined()) {
    const auto sizes = inputs.positions.sizes();
    const bool rows3 = sizes.size() == 3 && m.mrope && sizes[0] == 3 && sizes[1] == B && sizes[2] == T;
    const bool plain = sizes.size() == 2 && sizes[0] == B && sizes[1] == T;
    if ((!rows3 && !plain) || inputs.positions.scalar_type() != at::kLong) {
      throw InputError(
          fmt::format("positions: expected int64 [{}, {}]{}, found {} {}", B, T,
                      m.mrope ? fmt::format(" or [3, {}, {}]", B, T) : " (this family has no three-row positions)",
                      dtype_name(inputs.positions.scalar_type()), shape_text(sizes)));
    }
    if (inputs.positions.min().item<int64_t>() < 0)
      throw InputError("positions: expected 0 or more, found a negative one");
  }
  if (inputs.mask.defined()) {
    const auto& mask = inputs.mask;
    if (mask.dim() != 2 || mask.size(0) != B || mask.size(1) != past + T || mask.scalar_type() != at::kLong) {
      throw InputError(fmt::format("mask: expected int64 [{}, {}] (past {} + {} tokens), found {} {}", B, past + T,
                                   past, T, dtype_name(mask.scalar_type()), shape_text(mask.sizes())));
    }
    if (!((mask == 0) | (mask == 1)).all().item<bool>()) throw InputError("mask: expected only 0 and 1");
    if (cached && (mask.select(1, -1) == 0).any().item<bool>()) {
      throw InputError(
          "mask: right padding with a cache is not supported by the reference (its states run on over the "
          "pads); pad on the left");
    }
  }
}

void CausalLM::check(const Inputs& inputs, const Cache* cache) const {
  if (cache && cache->model != number_) {
    throw InputError("cache: it belongs to another model; make one with this model's new_cache()");
  }
  if (cache && cache->spoiled) throw InputError("cache: a forward stopped half-way in it; start again with a new one");
  check(inputs, cache ? cache->past : 0, cache != nullptr);
  if (!cache) return;
  for (const auto& layer : cache->layers) {
    const auto& state = layer.keys.defined() ? layer.keys : layer.conv_state;
    if (state.defined() && state.size(0) != inputs.ids.size(0)) {
      throw InputError(
          fmt::format("ids: the cache holds a batch of {}, found one of {}", state.size(0), inputs.ids.size(0)));
    }
  }
}

}  // namespace lockstep
