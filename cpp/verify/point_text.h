// Compared points in words.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lockstep {

/// The decoder layer of a point, or the module outside of the layers.
std::string group_of(const std::string& point);

/// `model.layers.7.mlp.output (len65): deviates; 12 of 2048 elements, worst |diff| 3.1e-04 at [0, 5, 113]`, of a
/// compared point {point, input, verdict, ...}.
std::string point_text(const nlohmann::json& point);

}  // namespace lockstep
