// Unicode as tokenizers 0.23.3 has it, by examples that the system's libraries, or one table for all, would get wrong.
// All code points are held against the tables by scripts/make_unicode_tables.py --check.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "text/unicode.h"
#include "text/utf8.h"

namespace lockstep {
namespace {

bool in(std::string_view name, char32_t c) { return in_ranges(unicode_class(name), c); }

std::string repeat(const std::string& unit, size_t times) {
  std::string text;
  for (size_t i = 0; i < times; ++i) text += unit;
  return text;
}

/// The NFC of every segment, with a bar between two.
std::string segments(const std::string& text) {
  std::string joined;
  for (size_t from = 0; from < text.size();) {
    const auto end = nfc_segment(text, from);
    if (from) joined += '|';
    joined += nfc(text.substr(from, end - from));
    from = end;
  }
  return joined;
}

TEST(UnicodeClass, HoldsUnicode16) {
  EXPECT_TRUE(in("L", U'a') && in("Ll", U'a') && in("Latin", U'a') && !in("Lu", U'a'));
  EXPECT_TRUE(in("Han", U'中') && in("Lo", U'中') && !in("Hiragana", U'中'));
  EXPECT_TRUE(in("L", 0x1c89) && in("Lu", 0x1c89));  // a Cyrillic letter of Unicode 16
  EXPECT_TRUE(in("L", 0x2ebf0) && in("Han", 0x31350));
  EXPECT_TRUE(in("Nd", 0x10d40));  // a Garay digit, of Unicode 16
  EXPECT_FALSE(in("L", 0x323b0));  // of Unicode 17
  EXPECT_TRUE(in("Cn", 0x323b0) && in("C", 0x10ffff) && in("Co", 0xe000));
  EXPECT_FALSE(in("C", 0xd800));  // no surrogate is anywhere
}

TEST(UnicodeClass, EndsOfRangesAreIncluded) {
  EXPECT_TRUE(in("Lu", U'A') && in("Lu", U'Z'));
  EXPECT_FALSE(in("Lu", U'@') || in("Lu", U'['));
  EXPECT_TRUE(in("Han", 0x4e00) && in("Han", 0x9fff));
  EXPECT_FALSE(in("Han", 0x4dff) || in("Han", 0xa000));
  EXPECT_FALSE(in_ranges({}, U'a') || in_ranges({}, U'中'));
}

TEST(UnicodeClass, EscapesAreThoseOfThePatterns) {
  EXPECT_TRUE(in("space", U' ') && in("space", 0x85) && in("space", 0x3000));
  EXPECT_FALSE(in("space", 0x200b) || in("space", 0x1c));
  EXPECT_TRUE(in("digit", U'7') && in("digit", 0x660));
  EXPECT_FALSE(in("digit", U'²'));
  EXPECT_TRUE(in("word", U'_') && in("word", 0x301) && in("word", U'²'));  // Oniguruma's own: Latin-1's numbers too
  EXPECT_FALSE(in("word", 0x2074) || in("word", 0x200d));
}

TEST(UnicodeClass, UnknownNameIsEmpty) {
  for (const auto* name : {"", "l", "Letter", "Lx", "Zzzz", "numeric"})
    EXPECT_TRUE(unicode_class(name).empty()) << name;
}

TEST(Unicode, NumericIsRusts) {
  for (const char32_t c : {U'0', U'½', U'²', U'Ⅳ', U'〇'}) EXPECT_TRUE(is_numeric(c)) << uint32_t{c};
  EXPECT_FALSE(is_numeric(U'x') || is_numeric(U'一'));  // a numeral, but a letter
  EXPECT_TRUE(is_numeric(0x11de0));                     // of Unicode 17
  EXPECT_FALSE(in("N", 0x11de0));
}

TEST(Unicode, WhiteSpaceIsRusts) {
  for (const char32_t c : {U' ', U'\n', U'\u00a0', U'\u0085', U'\u2028'})
    EXPECT_TRUE(is_rust_white_space(c)) << uint32_t{c};
  for (const char32_t c : {U'\u200b', U'\u001c', U'\ufeff', U'_'}) EXPECT_FALSE(is_rust_white_space(c)) << uint32_t{c};
}

TEST(Unicode, WordIsRustsAndNotThePatterns) {
  EXPECT_TRUE(is_rust_word(U'a') && is_rust_word(U'_') && is_rust_word(U'中') && is_rust_word(0x301));
  EXPECT_FALSE(is_rust_word(U'-') || is_rust_word(U' '));
  EXPECT_TRUE(is_rust_word(0x200d) && !in("word", 0x200d));
  EXPECT_TRUE(!is_rust_word(U'²') && in("word", U'²'));
}

TEST(Nfc, Composes) {
  EXPECT_EQ(nfc(""), "");
  EXPECT_EQ(nfc("plain, é ÿ"), "plain, é ÿ");
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("xe\u0301y e\u0323\u0302 z"), "x\u00e9y \u1ec7 z");
  EXPECT_EQ(nfc("e\u0302\u0323"), "\u1ec7");       // ordered first
  EXPECT_EQ(nfc("\u00e9\u0323"), "\u1eb9\u0301");  // and a composed letter taken apart for it
  EXPECT_EQ(nfc("x\u0345\u0301\u0334"), "x\u0334\u0301\u0345");
  EXPECT_EQ(nfc("\u0301\u0323e"), "\u0323\u0301e");  // marks with nothing to stand on
  EXPECT_EQ(nfc("\u212b \u2126 \uf900"), "\u00c5 \u03a9 \u8c48");
  EXPECT_EQ(nfc("\u0958 \u0344"), "\u0915\u093c \u0308\u0301");  // never composed again
  EXPECT_EQ(nfc("\u09c7\u09be"), "\u09cb");                      // a second that is no mark
}

TEST(Nfc, ComposesHangul) {
  EXPECT_EQ(nfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(nfc("\uac00\u11a8\u11a8"), "\uac01\u11a8");
  EXPECT_EQ(nfc("\uac00\uac01"), "\uac00\uac01");
  EXPECT_EQ(nfc("\u1100\u0301\u1161"), "\u1100\u0301\u1161");
  EXPECT_EQ(nfc("\uac00\u11a7"), "\uac00\u11a7");  // utf8proc 2.8 drops the vowel, as if it were an empty final
}

TEST(Nfc, MarksAfterUnicode9AreInert) {
  EXPECT_EQ(nfc("a\u0345\u07fd"), "a\u0345\u07fd");  // of class 220: it would go before U+0345
  EXPECT_EQ(nfc("a\u07fd\u0301"), "a\u07fd\u0301");  // U+0301 is of class 230: it would reach the a
  EXPECT_EQ(nfc("e\u0301\u07fd\u0301\u0323"), "\u00e9\u07fd\u0323\u0301");
  EXPECT_EQ(nfc("\U00011935\U00011930"), "\U00011935\U00011930");  // composes since Unicode 13
  EXPECT_EQ(nfc("\U00011938"), "\U00011938");
}

TEST(Nfc, SegmentsStandAlone) {
  EXPECT_EQ(segments("ab"), "a|b");
  EXPECT_EQ(segments("e\u0302\u0323x"), "\u1ec7|x");
  EXPECT_EQ(segments("\u0301\u0323e"), "\u0323\u0301|e");
  EXPECT_EQ(segments("\u1100\u1161\u11a8\u1100"), "\uac01|\u1100");
  EXPECT_EQ(segments("a\u0345\u07fd\u0301"), "a\u0345|\u07fd\u0301");
  EXPECT_EQ(segments("\u00e9\u4e2d"), "\u00e9|\u4e2d");
  EXPECT_EQ(nfc_segment("xe\u0301", 1), 4u);
}

TEST(Nfc, LongRunsOfMarksTakeNoQuadraticTime) {  // utf8proc's own order takes 3 s for 32 KB of it
  const size_t half = 250'000;
  std::string text = "e", expected = "\u1eb9";
  text.append(repeat("\u0301\u0323", half));
  expected.append(repeat("\u0323", half - 1)).append(repeat("\u0301", half));
  EXPECT_EQ(nfc(text), expected);
}

TEST(Unicode, SaysTheRelease) { EXPECT_STREQ(unicode_tables_release(), "0.23.3"); }

}  // namespace
}  // namespace lockstep
