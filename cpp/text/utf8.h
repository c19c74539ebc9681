// UTF-8: bytes made valid, and code points of valid text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

/// What Python's bytes.decode("utf-8", "replace") makes of any bytes: each maximal part of a broken sequence is U+FFFD.
std::string valid_utf8(std::string_view bytes);

/// Bytes of the code point whose first byte this is, in valid UTF-8.
inline size_t utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/// The code point at `at` of valid UTF-8, which is moved past it.
char32_t next_code_point(std::string_view text, size_t& at);

/// The code point that ends at `end` of valid UTF-8; `end` > 0.
char32_t code_point_before(std::string_view text, size_t end);

void append_utf8(std::string& text, char32_t code_point);

/// Code points in valid UTF-8.
size_t count_code_points(std::string_view text);

}  // namespace lockstep
