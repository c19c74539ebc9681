// Names the cause of a sublayer's error: every hypothesis that applies is projected, and a linear map's or a norm's
// error is regressed on what its weights multiply.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "verify/hypotheses.h"
#include "verify/local_check.h"
#include "verify/projection.h"

namespace lockstep {

enum class Standing { proved, ruled_out, not_discriminated, same_function };
const char* name(Standing standing);

struct Tried {
  const Hypothesis* hypothesis = nullptr;  // null: a single weight
  std::string label;                       // its name
  FaultClass fault_class = FaultClass::formula;
  Standing standing = Standing::same_function;
  double alpha = 0, alpha_error = 0;
  std::string parameter;       // of a fitted number or a weight
  std::vector<int64_t> index;  // of a weight
  double config = 0, estimate = 0, estimate_error = 0;
  bool has_estimate = false;
  double left = 0;
  Projection projection;
};

struct Causes {
  Causes() = default;
  Causes(const Causes&) = delete;  // `best` points into `tried`
  Causes& operator=(const Causes&) = delete;
  std::vector<Tried> tried;
  /// The proved one that leaves least, or null; those that cannot be told from it.
  const Tried* best = nullptr;
  std::vector<std::string> also;
  nlohmann::json json() const;  // of the best, or null
};

/// Tries all hypotheses that apply to `sublayer` on one side's result, which judge() made just now.
/// `without`: names that are left out.
void find_causes(LocalCheck& check, const Sublayer& sublayer, const SideResult& side, const Trace& trace,
                 const std::set<std::string>& without, Causes& causes);

}  // namespace lockstep
