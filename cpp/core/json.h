// Strict JSON: duplicate keys and deep nesting are errors. nlohmann/json alone does not say which duplicate survives.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lockstep {

/// Parses `text`; `where` names the file in messages. Raises LoadError for bad JSON, a repeated key (also one spelled
/// with another escape) or nesting deeper than 64.
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// Reads a whole file of at most `limit` bytes. Raises LoadError.
std::string read_text(const std::string& path, size_t limit = size_t{64} << 20);

}  // namespace lockstep
