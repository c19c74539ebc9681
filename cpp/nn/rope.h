// Rotary position embedding: inverse frequencies by rope type, and the rotation of split halves (HF's pairing).
#pragma once

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/config_reader.h"

namespace lockstep {

/// The rope keys of a config, read strictly.
struct RopeConfig {
  std::string type;  // default, linear, llama3
  double theta = 0;
  double partial_rotary_factor = 1;
  double factor = 1;                                                                       // linear, llama3
  double low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = 0;  // llama3
  std::vector<int64_t> mrope_section;                                                      // qwen3_5; else empty
  bool mrope_interleaved = false;
};

/// Reads `rope_theta`, `partial_rotary_factor` and the rope type from both places where releases of transformers write
/// them (top level; `rope_parameters` or the older `rope_scaling`). Two places that disagree, an unknown type and an
/// absent theta are LoadErrors. Never a default theta. `partial` is the family's factor where the config has none.
RopeConfig read_rope(ConfigReader& config, bool multimodal, double partial);

/// inv_freq [rotary_dim / 2] in `dtype` (HF's is float32, the truth's float64). mirrors
/// compute_default_rope_parameters and modeling_rope_utils' linear and llama3
at::Tensor inverse_frequencies(const RopeConfig& rope, int64_t head_dim, at::ScalarType dtype = at::kFloat);

}  // namespace lockstep
