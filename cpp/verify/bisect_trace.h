// Bisection with nothing running but the truth: a candidate's trace, and a reference's if there is one.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/trace.h"

namespace lockstep {

struct BisectTraceOptions {
  bool values = false;    // judge the values inside of every sublayer too
  bool thorough = false;  // every hypothesis on every sublayer
  std::function<void(const std::string&)> progress;
};

/// The data of `lockstep-native bisect --json`: that of `lockstep bisect` for a trace, whose reference is a trace too,
/// or null. Raises LoadError for the checkpoint, InputError for forwards that the model cannot run, for traces of
/// different inputs, and for a candidate of which nothing could be judged.
nlohmann::json bisect_trace(const std::string& folder, const std::shared_ptr<const Trace>& candidate,
                            const std::shared_ptr<const Trace>& reference, const BisectTraceOptions& options);

/// The report that a person reads.
std::vector<std::string> findings_lines(const nlohmann::json& data);
/// JUnit XML: one case per sublayer.
std::string findings_junit(const nlohmann::json& data);

}  // namespace lockstep
