#include "verify/coverage.h"

#include <algorithm>

#include "nn/gated_delta_rule.h"

namespace lockstep {

using nlohmann::json;

namespace {

// What each name means is what hides without it (see the README's table).
constexpr const char* kMechanisms[] = {
    "batch",             // two different rows in one batch
    "causal_mask",       // two or more tokens
    "chunk_from_state",  // several tokens at once onto a recurrent state
    "chunk_hand_over",   // more than 64 tokens: the state from one chunk to the next
    "conv_reach",        // at least as many tokens as the convolution is wide
    "conv_state",        // the convolution continues from a cached state
    "delta_rule_step",   // one token onto a recurrent state
    "distinct_tokens",   // two different ids
    "gate_split",        // query and gate of several heads in one projection
    "gqa",               // fewer key/value heads than query heads
    "head_grouping",     // fewer linear key heads than value heads
    "kv_cache",          // keys and values continue from a cache
    "left_padding",      // masked positions on the left
    "long_positions",    // a position over 256: bfloat16 cannot count further
    "mrope_rows",        // three-row positions that differ
    "partial_rotary",    // two positions, where only part of a head rotates
    "rope",              // two different positions
};

}  // namespace

bool Coverage::present(const std::string& mechanism) const {
  const bool linear = m_.linear_key_heads > 0;
  const auto has = [&](const char* type) {
    return std::find(m_.layer_types.begin(), m_.layer_types.end(), type) != m_.layer_types.end();
  };
  const bool linear_layer = linear && has("linear_attention"), full_layer = has("full_attention");
  if (mechanism == "chunk_from_state" || mechanism == "chunk_hand_over" || mechanism == "conv_reach" ||
      mechanism == "conv_state" || mechanism == "delta_rule_step") {
    return linear_layer;
  }
  if (mechanism == "head_grouping") return linear_layer && m_.linear_value_heads > m_.linear_key_heads;
  if (mechanism == "gqa") return full_layer && m_.attention_heads > m_.key_value_heads;
  if (mechanism == "gate_split") return full_layer && m_.output_gate && m_.attention_heads > 1;
  if (mechanism == "mrope_rows") return full_layer && m_.mrope_rows;
  if (mechanism == "partial_rotary") return full_layer && m_.rotary_dim < m_.head_dim;
  if (mechanism == "kv_cache" || mechanism == "rope" || mechanism == "long_positions") return full_layer;
  return true;
}

void Coverage::add(const Inputs& in, int64_t past, bool cached) {
  const auto B = in.ids.size(0), T = in.ids.size(1);
  const auto flat = in.ids.contiguous().view({-1});
  for (int64_t i = 0; i < flat.numel(); ++i) ids_.insert(flat.const_data_ptr<int64_t>()[i]);

  const auto positions = in.positions.defined() ? in.positions : at::arange(T) + past;
  const bool moved = past > 0 || positions.min().item<int64_t>() != positions.max().item<int64_t>();
  const bool continued = cached && past > 0;
  mark("batch", B > 1 && !at::equal(in.ids[0], in.ids[B - 1]));
  mark("causal_mask", T > 1);
  mark("chunk_from_state", continued && T > 1);
  mark("chunk_hand_over", T > kDeltaRuleChunk);
  mark("conv_reach", T >= m_.conv_kernel);
  mark("conv_state", continued);
  mark("delta_rule_step", continued && T == 1);
  mark("distinct_tokens", ids_.size() > 1);
  mark("gate_split", true);
  mark("gqa", true);
  mark("head_grouping", true);
  mark("kv_cache", continued);
  mark("left_padding", in.mask.defined() && (in.mask.select(1, 0) == 0).any().item<bool>());
  mark("long_positions", positions.max().item<int64_t>() > 256);
  mark("mrope_rows",
       positions.dim() == 3 && !(at::equal(positions[0], positions[1]) && at::equal(positions[0], positions[2])));
  mark("partial_rotary", moved);
  mark("rope", moved);
}

json Coverage::finish() const {
  json exercised = json::array(), not_exercised = json::array(), absent = json::array();
  for (const std::string mechanism : kMechanisms) {
    (!present(mechanism) ? absent : exercised_.count(mechanism) ? exercised : not_exercised).push_back(mechanism);
  }
  return {{"exercised", exercised},
          {"not_exercised", not_exercised},
          {"absent", absent},
          {"rows", {{"distinct_ids", ids_.size()}, {"vocab", m_.vocab}}}};
}

}  // namespace lockstep
