// The product that decoding consists of: one token's row times a weight. MKL runs it on one thread, which leaves half
// of two cores' memory bandwidth unused; the rows of the weight are independent, so they can be split over the threads.
#pragma once

#include <ATen/ATen.h>

namespace lockstep {

/// at::linear(x, weight) of a weight that wants a gradient, in its bits. Where x is one row and the weight is large,
/// parts of the weight's rows are multiplied by the same kernel on torch's threads at once: only for a dtype and shape
/// whose parts were seen, in this process, to give the bits of the whole; else the whole call.
at::Tensor hf_linear(const at::Tensor& x, const at::Tensor& weight);

namespace one_row {

/// Could the product be split at all? One row, a large contiguous weight of whole blocks of 64 rows in float32 or
/// bfloat16, two threads or more, not inside a parallel region, and nobody listening to the operations.
bool splits(const at::Tensor& x, const at::Tensor& weight);
/// The product in `parts` parts of whole blocks of 64 rows: each begins where the weight is aligned as at its start.
at::Tensor in_parts(const at::Tensor& x, const at::Tensor& weight, int64_t parts);
/// Do the parts give the bits of the whole for weights of this dtype and shape? Tried once per process: on rows whose
/// result is nothing but the rounding of the order in which they are added up; a weight of 64 MiB or more is tried as
/// it is, which shows another order in some of its many results.
bool keeps_bits(const at::Tensor& weight, int64_t parts);

}  // namespace one_row

}  // namespace lockstep
