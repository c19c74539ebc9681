// Two traces, point by point: do the numbers agree?
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/metrics.h"
#include "io/trace.h"

namespace lockstep {

/// A trace and what messages call it.
struct NamedTrace {
  const Trace& trace;
  std::string name;
};

/// Raises InputError naming the first forward whose ids, positions, mask or past the two have otherwise, or the dtype.
void same_inputs(const NamedTrace& a, const NamedTrace& b);

/// The data of `lockstep compare --json` but for `seconds`: `b` judged against `a`, forward by forward in `b`'s order.
/// Points that only one of them promises are listed, not compared; top-k log-probabilities are held against whole
/// logits. bitwise: only the same bits pass. Raises InputError for traces of different inputs.
nlohmann::json compare_traces(const NamedTrace& a, const NamedTrace& b, const Gate& gate, bool bitwise);

/// The report that a person reads.
std::vector<std::string> comparison_lines(const nlohmann::json& data);

}  // namespace lockstep
