// The default input whose noise floor counts everywhere.
#pragma once

#include <ATen/ATen.h>

namespace lockstep {

/// ids [1, 130] of the default input `len130`: what inputs.py's default_inputs draws from Python's random.Random.
at::Tensor len130_ids(int64_t vocab);

}  // namespace lockstep
