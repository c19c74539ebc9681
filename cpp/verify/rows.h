// A point's tensor as rows, the unit of the local check: a row is a token; of a recurrent state (batch, head), of a KV
// cache (batch, head, position), of a conv state (batch, channel), of inv_freq the whole.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "io/trace.h"

namespace lockstep {

struct Rows {
  at::Tensor values;    // [R, n] in the tensor's dtype
  at::Tensor attended;  // [R] bool: only these count
};

/// `value` of `point` in a forward of [B, T] tokens. Layouts follow the release `variant`; a tensor whose shape does
/// not fit gives one row. `mask` [B, past + T] or undefined.
Rows rows_of(const std::string& point, const at::Tensor& value, const TraceForward& forward,
             const std::string& variant);

/// A value inside of a sublayer as `expected` has it: other engines fold or unfold heads. Undefined if it has another
/// number of elements.
at::Tensor inner_as(const at::Tensor& value, const at::Tensor& expected);

/// Per row |candidate - truth| / |truth| in float64, [R]: 0 where both are zero, infinite where only the truth is, NaN
/// where the candidate holds a NaN. Both [R, n].
at::Tensor row_errors(const at::Tensor& candidate, const at::Tensor& truth);

}  // namespace lockstep
