// The alphabet of byte-level vocabularies: a printable character for each byte (GPT-2's; the same table everywhere).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// The bytes that a string of the alphabet stands for, or nothing if a character is none of it.
std::optional<std::string> bytes_of_level(std::string_view text);

/// How the alphabet writes bytes.
std::string level_of_bytes(std::string_view bytes);

}  // namespace lockstep
