// Scaled dot-product attention by HF's two implementations.
#pragma once

#include <ATen/ATen.h>

#include "nn/run.h"

namespace lockstep {

/// query [B, H, T, K], key and value [B, G, past + T, K], mask as causal_mask() makes it -> [B, T, H, K] contiguous,
/// for the attention module `at`. The truth and the index-order run compute softmax(q k^T scaling) v as it is written.
/// mirrors transformers integrations.sdpa_attention.sdpa_attention_forward and a model's eager_attention_forward
at::Tensor attention(const Run& run, const Module& at, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const at::Tensor& mask, double scaling);

}  // namespace lockstep
