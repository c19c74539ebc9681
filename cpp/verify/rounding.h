// The verdict `rounding` of compared points: what the local check says of both sides, brought back to them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lockstep {

/// The judged point that holds the same tensor as `point`, in a model of so many layers: what only passes a value on
/// has no arithmetic of its own.
std::string judged_as(const std::string& point, int64_t layers);

/// For each of `points` ({point, input, verdict, ...}): floor and ratio of the candidate's side and the reference's
/// ratio, or null; `rounding` for one that deviates where both sides are within the bound. judged: bisect()'s `points`.
/// by_local_check: it alone decides, so that one that agrees within atol and is no rounding deviates.
nlohmann::json settle_rounding(nlohmann::json points, const nlohmann::json& judged, int64_t layers,
                               bool by_local_check = false);

}  // namespace lockstep
