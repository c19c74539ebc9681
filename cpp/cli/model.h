// Where a model is, for the native commands.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::cli {

constexpr const char* kModelHelp =
    "A checkpoint folder, or a hub id that is in the local hub cache; the embedded checkpoint if left out";

/// The folder of `model`; of an empty one the embedded checkpoint, which stands beside the program. Nothing is fetched.
/// Raises LoadError for what is neither a folder nor in the cache.
std::string resolve_model(const std::string& model);

/// Raises InputError, before any work is done, for an output that is one of `inputs` or lies inside of one.
void check_writable(const std::string& option, const std::optional<std::string>& path,
                    const std::vector<std::string>& inputs);

}  // namespace lockstep::cli
