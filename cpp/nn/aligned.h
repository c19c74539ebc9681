// Where a tensor lies in memory, which is seen in bits.
#pragma once

#include <ATen/ATen.h>

namespace lockstep {

/// x itself, or a copy where it lies as no allocator would put it, like a tensor in a mapped file: a product's bits
/// depend on that (MKL with AVX2 alone), and what is computed must not depend on where its input was kept.
at::Tensor aligned(const at::Tensor& x);

}  // namespace lockstep
