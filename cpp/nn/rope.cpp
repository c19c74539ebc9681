#include "nn/rope.h"

#include <fmt/format.h>

#include <numbers>

#include "core/error.h"

namespace lockstep {

RopeConfig read_rope(ConfigReader& config, bool multimodal, double partial) {
  const bool has_parameters = config.has("rope_parameters"), has_scaling = config.has("rope_scaling");
  std::optional<ConfigReader> nested;
  if (has_parameters) nested.emplace(config.child("rope_parameters"));
  if (has_scaling && !has_parameters) nested.emplace(config.child("rope_scaling"));
  if (has_parameters && has_scaling) {
    config.fail("rope_scaling", "rope_parameters is there too; expected one of them");
  }

  RopeConfig rope;
  rope.type = "default";
  ConfigReader* inner = nested ? &*nested : nullptr;
  if (inner) {
    const auto type = inner->find<std::string>("rope_type"), old = inner->find<std::string>("type");
    if (type && old && *type != *old && !(*old == "mrope" && *type == "default")) {
      inner->fail("rope_type",
                  fmt::format("is \"{}\" but {} is \"{}\": expected one value", *type, inner->at("type"), *old));
    }
    rope.type = type ? *type : old ? (*old == "mrope" ? "default" : *old) : "default";
    if (rope.type != "default" && rope.type != "linear" && rope.type != "llama3") {
      inner->fail(type ? "rope_type" : "type",
                  fmt::format("\"{}\" is not implemented (implemented: default, linear, llama3)", rope.type));
    }
  }
  rope.theta = one_of_two(config, "rope_theta", inner, "rope_theta");
  rope.partial_rotary_factor = one_of_two(config, "partial_rotary_factor", inner, "partial_rotary_factor", partial);
  if (rope.partial_rotary_factor > 1) {
    config.fail("partial_rotary_factor", fmt::format("expected at most 1, found {}", rope.partial_rotary_factor));
  }
  if (rope.type == "linear" || rope.type == "llama3") rope.factor = inner->require_positive("factor");
  if (rope.type == "llama3") {
    rope.low_freq_factor = inner->require_positive("low_freq_factor");
    rope.high_freq_factor = inner->require_positive("high_freq_factor");
    rope.original_max_position_embeddings =
        one_of_two(config, "original_max_position_embeddings", inner, "original_max_position_embeddings");
    if (rope.high_freq_factor == rope.low_freq_factor)
      inner->fail("high_freq_factor", "expected another value than low_freq_factor");
  }
  if (multimodal) {
    if (inner) {
      if (auto section = inner->find<std::vector<int64_t>>("mrope_section")) rope.mrope_section = *section;
      inner->expect("mrope_interleaved", true);
    }
    if (!inner || !inner->has("mrope_section"))
      rope.mrope_section = {11, 11, 10};  // HF's own where the config has none
    if (rope.mrope_section.size() != 3) {
      inner->fail("mrope_section", fmt::format("expected three lengths, found {}", rope.mrope_section.size()));
    }
    for (auto length : rope.mrope_section) {
      if (length < 0 || length > 4096)
        inner->fail("mrope_section", fmt::format("expected lengths from 0 to 4096, found {}", length));
    }
    rope.mrope_interleaved = true;
  }
  if (inner) inner->finish();
  return rope;
}

at::Tensor inverse_frequencies(const RopeConfig& rope, int64_t head_dim, at::ScalarType dtype) {
  const auto dim = static_cast<int64_t>(double(head_dim) * rope.partial_rotary_factor);
  const auto exponent = at::arange(0, dim, 2, dtype) / double(dim);
  auto inv_freq = at::pow(rope.theta, exponent).reciprocal() * 1.0;
  if (rope.type == "linear") return inv_freq / rope.factor;
  if (rope.type != "llama3") return inv_freq;

  const double old_length = rope.original_max_position_embeddings;
  const double low_freq_wavelen = old_length / rope.low_freq_factor;
  const double high_freq_wavelen = old_length / rope.high_freq_factor;
  const auto wavelen = inv_freq.reciprocal() * (2 * std::numbers::pi);
  auto scaled = at::where(wavelen > low_freq_wavelen, inv_freq / rope.factor, inv_freq);
  const auto smooth =
      (wavelen.reciprocal() * old_length - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const auto smoothed = at::rsub(smooth, 1) * scaled / rope.factor + smooth * scaled;
  const auto medium = at::logical_not(wavelen < high_freq_wavelen) * at::logical_not(wavelen > low_freq_wavelen);
  return at::where(medium, smoothed, scaled);
}

}  // namespace lockstep
