// How tensors are spelled in messages and reports: "float32", "[4096, 1024]".
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>

namespace lockstep {

/// torch's own dtype name without the prefix: float32, bfloat16, int64, ...
std::string dtype_name(at::ScalarType dtype);
/// The dtypes a run may have: float32, bfloat16, float16. Empty for any other name.
std::optional<at::ScalarType> run_dtype(const std::string& name);
std::string shape_text(at::IntArrayRef shape);
/// Flat index -> "[0, 5, 113]" coordinates of a row-major tensor.
std::vector<int64_t> unravel(int64_t flat, at::IntArrayRef shape);

}  // namespace lockstep
