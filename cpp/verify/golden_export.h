// An export where no Python is: what Hugging Face computed comes from a golden trace, before and after the writing.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "verify/export.h"
#include "verify/golden.h"

namespace lockstep {

struct GoldenExportOptions {
  ExportOptions plan;
  bool accept_rounding = false;
  bool stream = false;  // one layer's weights in memory at a time
  Say say;
};

/// Replays `golden` on `folder`, writes it, reads every byte back, replays on what was written, and only then makes
/// `out` appear -> the data of `lockstep-native export --json`. A model that deviates, or a trace that does not
/// exercise every mechanism, writes nothing. Raises LoadError, InputError.
nlohmann::json export_by_golden(const std::string& folder, const std::string& out,
                                const std::shared_ptr<const Trace>& golden, const GoldenExportOptions& options);

/// The report that a person reads; `out` as it was asked for.
std::vector<std::string> golden_export_lines(const nlohmann::json& data, const std::string& out);

}  // namespace lockstep
