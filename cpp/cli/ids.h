// Ids as they are written on a command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::cli {

/// "1,2,3" or "1 2 3". Raises InputError naming `option`.
std::vector<int64_t> ids_of(const std::string& text, const std::string& option);

}  // namespace lockstep::cli
