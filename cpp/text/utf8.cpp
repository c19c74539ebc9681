#include "text/utf8.h"

namespace lockstep {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

bool continues(unsigned char byte) { return (byte & 0xc0) == 0x80; }

/// How many bytes from `at` are a sequence, or the longest beginning of one; `whole` says which. 0: no beginning.
size_t sequence(std::string_view bytes, size_t at, bool& whole) {
  const auto byte = [&](size_t i) -> unsigned { return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0; };
  const auto first = byte(at);
  whole = false;
  size_t length = 0;
  unsigned low = 0x80, high = 0xbf;  // what the second byte may be: no overlong form, no surrogate, none over U+10FFFF
  if (first < 0x80) return whole = true, 1;
  if (first >= 0xc2 && first <= 0xdf) length = 2;
  if (first >= 0xe0 && first <= 0xef) length = 3, low = first == 0xe0 ? 0xa0 : 0x80, high = first == 0xed ? 0x9f : 0xbf;
  if (first >= 0xf0 && first <= 0xf4) length = 4, low = first == 0xf0 ? 0x90 : 0x80, high = first == 0xf4 ? 0x8f : 0xbf;
  if (!length) return 0;
  if (byte(at + 1) < low || byte(at + 1) > high) return 1;
  for (size_t i = 2; i < length; ++i) {
    if (!continues(static_cast<unsigned char>(byte(at + i)))) return i;
  }
  whole = true;
  return length;
}

}  // namespace

std::string valid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    bool whole = false;
    const auto length = sequence(bytes, at, whole);
    if (whole) {
      text.append(bytes.substr(at, length));
    } else {
      text.append(kReplacement);
    }
    at += length ? length : 1;
  }
  return text;
}

char32_t next_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const char32_t first = byte(at);
  switch (utf8_length(text[at])) {
    case 1:
      at += 1;
      return first;
    case 2:
      at += 2;
      return (first & 0x1f) << 6 | (byte(at - 1) & 0x3f);
    case 3:
      at += 3;
      return (first & 0x0f) << 12 | (byte(at - 2) & 0x3f) << 6 | (byte(at - 1) & 0x3f);
    default:
      at += 4;
      return (first & 0x07) << 18 | (byte(at - 3) & 0x3f) << 12 | (byte(at - 2) & 0x3f) << 6 | (byte(at - 1) & 0x3f);
  }
}

char32_t code_point_before(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && continues(static_cast<unsigned char>(text[at]))) --at;
  return next_code_point(text, at);
}

void append_utf8(std::string& text, char32_t c) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  const auto rest = [&](int shift) { put(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6), rest(0);
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12), rest(6), rest(0);
  } else {
    put(0xf0 | c >> 18), rest(12), rest(6), rest(0);
  }
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += !continues(static_cast<unsigned char>(c));
  return count;
}

}  // namespace lockstep
