// What a forward leaves for the next one: keys and values of full attention, conv and recurrent states of the linear
// layers. Tensors are replaced, never changed in place, so a copied cache is a snapshot.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace lockstep {

struct LayerCache {
  at::Tensor keys, values;     // [B, G, past, K]
  at::Tensor conv_state;       // [B, C, conv kernel]
  at::Tensor recurrent_state;  // [B, Hv, Dk, Dv]

  /// Appends to keys and values and returns the whole. mirrors transformers cache_utils.DynamicLayer.update
  void append(const at::Tensor& key_states, const at::Tensor& value_states);
};

struct Cache {
  /// `model` is the model's own number: another model's cache is refused.
  Cache(size_t layers, int64_t model) : layers(layers), model(model) {}
  std::vector<LayerCache> layers;
  int64_t model;
  int64_t past = 0;      // tokens seen
  bool spoiled = false;  // a forward stopped half-way: the layers no longer agree on `past`
};

}  // namespace lockstep
