// Where a model is, for the native commands.
#pragma once

#include <string>

namespace lockstep::cli {

constexpr const char* kModelNeeded = "A checkpoint folder, or a hub id that is in the local hub cache";
constexpr const char* kModelHelp =
    "A checkpoint folder, or a hub id that is in the local hub cache; the embedded checkpoint if left out";

/// The folder of `model`; of an empty one the embedded checkpoint, which stands beside the program. Nothing is fetched.
/// Raises LoadError for what is neither a folder nor in the cache.
std::string resolve_model(const std::string& model);

}  // namespace lockstep::cli
