#include "core/vector_math.h"

#include <ATen/ATen.h>

namespace lockstep {

void settle_vector_math() {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto x = at::ones({8}, dtype);  // far below the size at which torch splits work over threads
    x.exp(), x.log(), x.log1p(), x.sin(), x.cos(), x.tanh(), x.erf(), x.sqrt(), x.pow(0.3);
  }
}

}  // namespace lockstep
