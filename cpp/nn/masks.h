// Attention masks as transformers makes them, also when it makes none: with and without a mask SDPA gives other bits.
#pragma once

#include <ATen/ATen.h>
#include <ATen/TensorIndexing.h>

#include "nn/run.h"

namespace lockstep {

/// The mask of the full-attention layers for T new tokens after `past`: bool [B, 1, T, past + T] for sdpa, float of
/// `dtype` for eager, or undefined where transformers passes none.
/// `padding` [B, past + T] int64 or undefined; `text_positions` [B, T] or undefined (packed sequences are found by
/// their differences, without mask and cache only). mirrors transformers masking_utils.create_causal_mask
at::Tensor causal_mask(const Run& run, int64_t batch, int64_t tokens, int64_t past, const at::Tensor& padding,
                       const at::Tensor& text_positions, at::ScalarType dtype);

/// What the linear-attention layers multiply hidden states with: [B, T] int64, or undefined.
/// mirrors transformers masking_utils.create_recurrent_attention_mask (5.10: Qwen3_5TextModel._update_linear_attn_mask)
at::Tensor recurrent_mask(const Run& run, int64_t tokens, int64_t past, const at::Tensor& padding);

}  // namespace lockstep
