// Are an export's bytes still those that were verified?
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "verify/export.h"

namespace lockstep {

struct CheckOptions {
  std::optional<std::string> source;  // a checkpoint folder: every exported tensor is derived from it once more
  std::optional<std::string> digest;  // that the manifest must have
};

/// The data of `lockstep check --json`: per file and per tensor {name, expected, found, verdict}, where `first` is the
/// first that is not as the manifest states, or that is there without being stated. Raises LoadError for a folder that
/// is no export, for a manifest of an unknown version, and for a source that cannot be loaded.
nlohmann::json check_export(const std::string& folder, const CheckOptions& options, const Say& say);

/// The rows that are not as stated, at most `shown` of them, and a closing line.
std::vector<std::string> check_lines(const nlohmann::json& data, size_t shown);

}  // namespace lockstep
