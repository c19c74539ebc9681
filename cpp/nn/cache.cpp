#include "nn/cache.h"

namespace lockstep {

void LayerCache::append(const at::Tensor& key_states, const at::Tensor& value_states) {
  // The first update too is a cat, with an empty one-dimensional tensor: the result's layout is a cat's.
  const auto past_keys = keys.defined() ? keys : at::empty({0}, key_states.options());
  const auto past_values = values.defined() ? values : at::empty({0}, value_states.options());
  keys = at::cat({past_keys, key_states}, -2);
  values = at::cat({past_values, value_states}, -2);
}

}  // namespace lockstep
