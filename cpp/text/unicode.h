// Unicode as Hugging Face's tokenizers have it, not as the system's libraries do: what a class holds, and NFC. The
// tables are probed from a release of tokenizers by scripts/make_unicode_tables.py. Surrogates are in none.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// Both ends are included. A table is sorted, and its ranges do not touch.
struct CodeRange {
  char32_t first, last;
};

/// A class of a pattern: a general category or a script by its short name, as in \p{Lu} or \p{Han}; "space", "word" and
/// "digit" are \s, \w and \d. Empty for a name that has no table.
std::span<const CodeRange> unicode_class(std::string_view name);

/// `ranges` as a table is.
bool in_ranges(std::span<const CodeRange> ranges, char32_t c);

/// What the Digits pre-tokenizer calls a digit: Rust's char::is_numeric, so also a fraction or a Roman numeral.
bool is_numeric(char32_t c);
/// What an added token's lstrip and rstrip take with it: \s of Rust's regex crate.
bool is_rust_white_space(char32_t c);
/// What an added token with single_word may not stand beside: \w of Rust's regex crate.
bool is_rust_word(char32_t c);

/// NFC of valid UTF-8 as of Unicode 9: a newer mark is neither moved nor composed, and nothing is moved across it.
std::string nfc(std::string_view text);

/// The end of the shortest segment of valid UTF-8 that begins at `from` and has an NFC of its own: nfc(text) is the
/// segments' NFC put together, if they are cut off one after the other. `from` < text.size().
size_t nfc_segment(std::string_view text, size_t from);

/// The release of tokenizers that the tables are of: "0.23.3".
const char* unicode_tables_release();

}  // namespace lockstep
