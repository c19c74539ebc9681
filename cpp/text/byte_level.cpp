#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace lockstep {

namespace {

/// Bytes that are printable by themselves keep their number; the others follow from 256 on, in order.
struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int, 512> byte{};
  Alphabet() {
    byte.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
      character[b] = printable ? static_cast<char32_t>(b) : next++;
      byte[character[b]] = b;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet made;
  return made;
}

}  // namespace

std::optional<std::string> bytes_of_level(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const auto c = next_code_point(text, at);
    if (c >= alphabet().byte.size() || alphabet().byte[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(alphabet().byte[c]));
  }
  return bytes;
}

std::string level_of_bytes(std::string_view bytes) {
  std::string text;
  for (const char b : bytes) append_utf8(text, alphabet().character[static_cast<unsigned char>(b)]);
  return text;
}

}  // namespace lockstep
