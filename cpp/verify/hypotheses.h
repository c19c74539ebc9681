// What may be wrong with an engine: every kind of planted fault, as a change to weights, to what is handed over, to a
// number, or to one primitive of the arithmetic.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "verify/changed.h"

namespace lockstep {

enum class FaultClass { formula, precision };

struct Hypothesis {
  std::string name;
  FaultClass fault_class;
  std::vector<Kind> kinds;  // the sublayers that it is about
  std::function<Change()> change;
  /// Of a hypothesis with a number in it: what it is called, and the first value to try, from the config's.
  std::string parameter;
  std::function<double(double config)> first_try;
  /// The value is the hypothesis (theta 10000): it is not fitted.
  bool fixed = false;
  bool applies(Kind kind) const;
};

/// All of them, formula before precision.
const std::vector<Hypothesis>& hypotheses();
/// Raises InputError for an unknown name.
const Hypothesis& hypothesis(const std::string& name);

}  // namespace lockstep
