#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "text/utf8.h"

namespace lockstep {

namespace {

struct NamedClass {
  std::string_view name;
  std::span<const CodeRange> ranges;
};

// kClasses, kNumeric, kRustWhiteSpace, kRustWord; kNfcJoins: what NFC may reorder or compose with what stands before
// it; kNfcKnown: these, what decomposes, and what a composition begins with. What is not known is inert, though
// utf8proc, whose Unicode is newer, may have a combining class or a composition for it.
#include "text/unicode_tables.inc"

// Below it NFC changes nothing and nothing joins; and the first byte of its UTF-8.
constexpr char32_t kFirstMark = 0x300;
constexpr unsigned char kFirstMarkByte = 0xcc;

bool hangul_syllable(char32_t c) { return c >= 0xac00 && c <= 0xd7a3; }

bool composed(char32_t c) { return c < kFirstMark || hangul_syllable(c) || !in_ranges(kNfcKnown, c); }

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Canonical order. utf8proc's own, inside utf8proc_map, takes quadratic time on a long run of marks.
void order_marks(std::vector<utf8proc_int32_t>& codes) {
  const auto starter = [](auto c) { return combining_class(c) == 0; };
  const auto lower = [](auto a, auto b) { return combining_class(a) < combining_class(b); };
  for (auto from = codes.begin(); from != codes.end();) {
    const auto end = std::find_if(from, codes.end(), starter);
    if (!std::is_sorted(from, end, lower)) std::stable_sort(from, end, lower);
    from = std::find_if_not(end, codes.end(), starter);
  }
}

void append_nfc(std::string& out, std::string_view segment) {
  size_t at = 0;
  const auto first = next_code_point(segment, at);
  if (in_ranges(kNfcKnown, first)) {
    at = 0;
  } else {
    append_utf8(out, first);
  }
  std::vector<utf8proc_int32_t> codes;
  while (at < segment.size()) {
    utf8proc_int32_t parts[8];  // no canonical decomposition has more than four
    const auto c = static_cast<utf8proc_int32_t>(next_code_point(segment, at));
    const auto count = utf8proc_decompose_char(c, parts, std::ssize(parts), UTF8PROC_DECOMPOSE, nullptr);
    codes.insert(codes.end(), parts, parts + count);
  }
  order_marks(codes);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  codes.resize(utf8proc_normalize_utf32(codes.data(), std::ssize(codes), options));
  for (const auto c : codes) append_utf8(out, c);
}

}  // namespace

std::span<const CodeRange> unicode_class(std::string_view name) {
  const auto* found = std::ranges::lower_bound(kClasses, name, {}, &NamedClass::name);
  return found != std::end(kClasses) && found->name == name ? found->ranges : std::span<const CodeRange>();
}

bool in_ranges(std::span<const CodeRange> ranges, char32_t c) {
  if (c < 0x80) {  // at most a few ranges lie there
    for (const auto& range : ranges) {
      if (c <= range.last) return c >= range.first;
    }
    return false;
  }
  const auto found = std::ranges::lower_bound(ranges, c, {}, &CodeRange::last);
  return found != ranges.end() && c >= found->first;
}

bool is_numeric(char32_t c) { return in_ranges(kNumeric, c); }
bool is_rust_white_space(char32_t c) { return in_ranges(kRustWhiteSpace, c); }
bool is_rust_word(char32_t c) { return in_ranges(kRustWord, c); }

size_t nfc_segment(std::string_view text, size_t from) {
  next_code_point(text, from);
  while (from < text.size() && static_cast<unsigned char>(text[from]) >= kFirstMarkByte) {
    auto next = from;
    if (!in_ranges(kNfcJoins, next_code_point(text, next))) break;
    from = next;
  }
  return from;
}

std::string nfc(std::string_view text) {
  const auto simple = [](char byte) { return static_cast<unsigned char>(byte) < kFirstMarkByte; };
  if (std::ranges::all_of(text, simple)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  size_t same = 0;  // where what is as it was begins, and is not in `out` yet
  for (size_t from = 0, end = 0; from < text.size(); from = end) {
    end = nfc_segment(text, from);
    auto next = from;
    if (composed(next_code_point(text, next)) && next == end) continue;
    out.append(text, same, from - same);
    append_nfc(out, text.substr(from, end - from));
    same = end;
  }
  return out.append(text, same);
}

const char* unicode_tables_release() { return kRelease; }

}  // namespace lockstep
