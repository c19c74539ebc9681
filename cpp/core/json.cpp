#include "core/json.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <unordered_set>
#include <vector>

#include "core/error.h"

namespace lockstep {

using nlohmann::json;

json parse_json(std::string_view text, const std::string& where) {
  constexpr int kDepth = 64;
  std::vector<std::unordered_set<std::string>> keys;
  auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kDepth) throw LoadError(fmt::format("{}: nested deeper than {} levels", where, kDepth));
    switch (event) {
      case json::parse_event_t::object_start:
        keys.emplace_back();
        break;
      case json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& name = parsed.get_ref<const std::string&>();
        if (!keys.back().insert(name).second) {
          throw LoadError(fmt::format("{}: duplicate key \"{}\"; expected every key once", where, name));
        }
        break;
      }
      default:
        break;
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const json::exception& e) {
    throw LoadError(fmt::format("{}: not valid JSON: {}", where, e.what()));
  }
}

std::string read_text(const std::string& path, size_t limit) {
  std::error_code ec;
  const auto size = std::filesystem::file_size(path, ec);
  if (!ec && !std::filesystem::is_regular_file(path, ec))
    throw LoadError(fmt::format("{}: expected a regular file", path));
  if (ec) throw LoadError(fmt::format("{}: cannot be read: {}", path, ec.message()));
  if (size > limit) throw LoadError(fmt::format("{}: {} bytes, expected at most {}", path, size, limit));
  std::ifstream in(path, std::ios::binary);
  std::string text(size, '\0');
  if (!in || !in.read(text.data(), static_cast<std::streamsize>(size))) {
    throw LoadError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  }
  return text;
}

}  // namespace lockstep
