#include "cli/ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "core/error.h"

namespace lockstep::cli {

std::vector<int64_t> ids_of(const std::string& text, const std::string& option) {
  auto spaced = text;
  std::replace(spaced.begin(), spaced.end(), ',', ' ');
  std::istringstream in(spaced);
  std::vector<int64_t> ids;
  for (std::string part; in >> part;) {
    if (part.size() > 18 || part.find_first_not_of("0123456789") != std::string::npos) {
      throw InputError(fmt::format("{} \"{}\": expected whole numbers with commas between, like 1,2,3", option, text));
    }
    ids.push_back(std::stoll(part));
  }
  if (ids.empty()) throw InputError(option + ": expected at least one id, found none");
  return ids;
}

}  // namespace lockstep::cli
