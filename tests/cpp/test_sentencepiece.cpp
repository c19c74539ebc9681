// SentencePiece models: a tiny one written byte by byte, and every way in which a file can be wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "core/error.h"
#include "files.h"
#include "text/sentencepiece_tokenizer.h"

namespace lockstep {
namespace {

using testing::expect_contains;
using testing::message_of;
using testing::TemporaryFolder;
using testing::write_file;
using Ids = std::vector<int64_t>;

enum Type { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

// Protobuf, as far as it is needed.

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  return bytes += static_cast<char>(value);
}

std::string number(int field, uint64_t value) { return varint(field << 3) + varint(value); }

std::string text(int field, const std::string& value) { return varint(field << 3 | 2) + varint(value.size()) + value; }

std::string float32(int field, float value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return varint(field << 3 | 5) + bytes;
}

std::string piece(const std::string& name, float score = 0, int type = kNormal) {
  return text(1, text(1, name) + float32(2, score) + (type == kNormal ? "" : number(3, type)));
}

/// The parts of a file, to be changed before they are put together.
struct Parts {
  std::vector<std::string> pieces;
  std::string trainer, normalizer = number(4, 0), rest;  // extra whitespace stays
  std::string bytes() const {
    std::string all;
    for (const auto& p : pieces) all += p;
    return all + text(2, trainer) + text(3, normalizer) + rest;
  }
};

/// <unk> <s> </s> [INST] <user>, then "he" "l" ..., merged as the scores say; with all bytes if asked for.
Parts parts(int model_type = 2, bool byte_fallback = false) {
  Parts p;
  p.pieces = {piece("<unk>", 0, kUnknown), piece("<s>", 0, kControl), piece("</s>", 0, kControl),
              piece("[INST]", 0, kControl), piece("<user>", 0, kUserDefined)};
  const std::vector<std::string> names = {"he", "▁he", "ll", "▁", "h", "e", "l", "o"};  // 5 to 12
  for (size_t i = 0; i < names.size(); ++i) p.pieces.push_back(piece(names[i], -1.0f - 0.5f * float(i)));
  p.trainer = number(3, model_type);
  if (byte_fallback) {
    p.trainer += number(35, 1);
    for (int b = 0; b < 256; ++b) {
      char name[8];
      std::snprintf(name, sizeof name, "<0x%02X>", b);
      p.pieces.push_back(piece(name, 0, kByte));  // 13 to 268
    }
  }
  return p;
}

constexpr int64_t kFirstByte = 13;

class SentencePiece : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> open(const std::string& bytes, SentencePieceRules rules = {}) {
    write_file(path_, bytes);
    return open_sentencepiece(path_, rules);
  }
  std::string refusal(const std::string& bytes, SentencePieceRules rules = {}) {
    const auto message = message_of<LoadError>([&] { open(bytes, rules); });
    EXPECT_EQ(message.rfind(path_, 0), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  TemporaryFolder folder_;
  std::string path_ = folder_ / "tokenizer.model";
};

TEST_F(SentencePiece, Encodes) {
  const auto t = open(parts().bytes());
  EXPECT_EQ(t->size(), 13);
  EXPECT_EQ(t->encode("hello", false), (Ids{6, 7, 12}));
  EXPECT_EQ(t->encode("", true), Ids{});
  EXPECT_EQ(t->encode("he  he", false), (Ids{6, 8, 6}));
  EXPECT_EQ(t->encode("o<user>o", false), (Ids{8, 12, 4, 12}));  // user-defined is found in text
  EXPECT_EQ(t->encode("<s>", false), (Ids{8, 0}));               // control is not; what is unknown is one piece
  EXPECT_EQ(t->bos(), std::nullopt);
}

TEST_F(SentencePiece, AddsWhatTheRulesSay) {
  const auto both = open(parts().bytes(), {true, true});
  EXPECT_EQ(both->encode("he", true), (Ids{1, 6, 2}));
  EXPECT_EQ(both->encode("he", false), (Ids{6}));
  EXPECT_EQ(both->encode("", true), (Ids{1, 2}));
  EXPECT_EQ(both->bos(), 1);
  const auto eos = open(parts().bytes(), {false, true});
  EXPECT_EQ(eos->encode("he", true), (Ids{6, 2}));
  EXPECT_EQ(eos->bos(), std::nullopt);
  auto named = parts();
  named.trainer += text(46, "[INST]");  // the file names its BOS
  EXPECT_EQ(open(named.bytes(), {true, false})->encode("he", true), (Ids{3, 6}));
}

TEST_F(SentencePiece, KnowsIds) {
  const auto t = open(parts().bytes());
  EXPECT_EQ(t->id_of("<unk>"), 0);
  EXPECT_EQ(t->id_of("[INST]"), 3);
  EXPECT_EQ(t->id_of("▁he"), 6);
  EXPECT_EQ(t->id_of("nothing"), std::nullopt);
  EXPECT_EQ(t->id_of(""), std::nullopt);
  EXPECT_EQ(t->id_of(std::string("he\0", 3)), std::nullopt);
}

TEST_F(SentencePiece, Decodes) {
  const auto t = open(parts().bytes());
  const auto decode = [&](const Ids& ids, bool skip = false) { return t->decode(ids, skip); };
  EXPECT_EQ(decode({6, 7, 12}), "hello");  // the first space is the one that was put there
  EXPECT_EQ(decode({6, 6}), "he he");
  EXPECT_EQ(decode({1, 6, 3, 7, 12, 2}), "hello");
  EXPECT_EQ(decode({8, 8, 12}), " o");
  EXPECT_EQ(decode({5, 0, 12}), "he ⁇ o");
  EXPECT_EQ(decode({5, 0, 4, 12}, true), "he<user>o");
  EXPECT_EQ(decode({}), "");
  EXPECT_EQ(decode({-1, 6, 13, int64_t{1} << 32, std::numeric_limits<int64_t>::min(), 7, 12}), "hello");
}

TEST_F(SentencePiece, FallsBackToBytes) {
  const auto t = open(parts(2, true).bytes());
  const Ids euro = {kFirstByte + 0xe2, kFirstByte + 0x82, kFirstByte + 0xac};
  EXPECT_EQ(t->encode("€", false), (Ids{8, euro[0], euro[1], euro[2]}));
  EXPECT_EQ(t->encode(std::string("\0", 1), false), (Ids{8, kFirstByte}));
  EXPECT_EQ(t->decode(euro, false), "€");
  EXPECT_EQ(t->decode(Ids{kFirstByte}, false), std::string("\0", 1));
  EXPECT_EQ(t->decode(Ids{euro[0], euro[1], 12}, false), "\xef\xbf\xbd\xef\xbf\xbdo");
  EXPECT_EQ(t->decode(Ids{euro[0], 1, euro[1], euro[2]}, false), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(t->decode(Ids{euro[0], 1, euro[1], euro[2]}, true), "€");
}

TEST_F(SentencePiece, CountsCodePoints) {
  const auto t = open(parts(2, true).bytes(), {true, true});
  const auto pieces = t->pieces("€he", true);
  const std::vector<std::tuple<int64_t, std::string, size_t, size_t>> expected = {{1, "<s>", 0, 0},
                                                                                  {8, "▁", 0, 0},
                                                                                  {kFirstByte + 0xe2, "<0xE2>", 0, 0},
                                                                                  {kFirstByte + 0x82, "<0x82>", 0, 0},
                                                                                  {kFirstByte + 0xac, "<0xAC>", 0, 1},
                                                                                  {5, "he", 1, 3},
                                                                                  {2, "</s>", 3, 3}};
  ASSERT_EQ(pieces.size(), expected.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(std::tuple(pieces[i].id, pieces[i].text, pieces[i].begin, pieces[i].end), expected[i]) << i;
  }
  const auto unknown = open(parts().bytes())->pieces("he€😀o", false);
  ASSERT_EQ(unknown.size(), 3u);
  EXPECT_EQ(unknown[1].text, "€😀");
  EXPECT_EQ(unknown[1].begin, 2u);
  EXPECT_EQ(unknown[1].end, 4u);
}

TEST_F(SentencePiece, TakesAMegabyte) {
  const auto t = open(parts(2, true).bytes());
  EXPECT_EQ(t->encode(std::string(1 << 20, 'l'), false).size(), (1u << 19) + 1);
}

// What is refused.

TEST_F(SentencePiece, RefusesOtherFiles) {
  expect_contains(refusal(""), "the file is empty, expected a SentencePiece model");
  expect_contains(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "Git LFS pointer");
  expect_contains(refusal("{\"version\": \"1.0\"}"), "at byte 0: expected wire type 0, 1, 2 or 5, found 3");
  expect_contains(message_of<LoadError>([&] { open_sentencepiece(folder_ / "none", {}); }), "cannot be read");
}

TEST_F(SentencePiece, RefusesEveryPrefix) {
  const auto bytes = parts().bytes();
  for (size_t size = 1; size < bytes.size(); ++size) {
    expect_contains(refusal(bytes.substr(0, size)), "is the file cut short?");
  }
}

TEST_F(SentencePiece, RefusesBrokenFields) {
  const auto p = parts();
  const auto with = [&](const std::string& rest) { return refusal(p.bytes() + rest); };
  expect_contains(with(text(6, "x")), "field 6 is none that this format has here");
  expect_contains(with(text(2, "")), "field 2 is there twice");
  expect_contains(with(number(1, 7)), "field 1: expected wire type 2, found 0");
  expect_contains(with(std::string(11, '\xff')), "expected a number of at most 64 bits");
  expect_contains(with(std::string("\0", 1)), "expected a field number from 1 to 536870911, found 0");
  expect_contains(with(text(1, text(1, "x") + text(9, ""))), "piece 13: at byte");
  auto twice = parts();
  twice.trainer += number(35, 0) + number(35, 1);
  expect_contains(refusal(twice.bytes()), "trainer_spec: at byte");
  auto flag = parts();
  flag.normalizer = number(3, 2);
  expect_contains(refusal(flag.bytes()), "field 3: expected 0 or 1, found 2");
}

TEST_F(SentencePiece, RefusesModelTypes) {
  expect_contains(refusal(parts(1).bytes()), "model_type 1 (UNIGRAM) is not implemented (implemented: 2, BPE)");
  expect_contains(refusal(parts(3).bytes()), "model_type 3 (WORD) is not implemented");
  expect_contains(refusal(parts(4).bytes()), "model_type 4 (CHAR) is not implemented");
  expect_contains(refusal(parts(9).bytes()), "model_type 9 (unknown) is not implemented");
  auto p = parts();
  p.trainer = "";  // then it is a Unigram model
  expect_contains(refusal(p.bytes()), "model_type 1 (UNIGRAM) is not implemented");
}

TEST_F(SentencePiece, RefusesWhatTheLibraryTokenizesOtherwiseThanThePackage) {
  auto p = parts();
  p.pieces.push_back(piece("lo", -9, kUnused));
  expect_contains(refusal(p.bytes()), "piece 13 \"lo\" is of type UNUSED, which is not implemented");
  p = parts();
  p.pieces.push_back(piece("\u4e00", 0, kControl));
  expect_contains(refusal(p.bytes()), "piece 13 \"\u4e00\" is of type CONTROL and one character, which is not");
}

TEST_F(SentencePiece, RefusesPieces) {
  const auto with = [&](const std::string& added) {
    auto p = parts();
    p.pieces.push_back(added);
    return refusal(p.bytes());
  };
  expect_contains(with(piece("")), "piece 13 \"\" is empty");
  expect_contains(with(piece("ll")), "piece 13 \"ll\" is piece 7 as well");
  expect_contains(with(piece("l\n", 0, kControl) + piece("l\n")), "piece 14 \"l\\n\" is piece 13 as well");
  expect_contains(with(piece("x", NAN)), "piece 13: at byte");
  expect_contains(with(piece("x", NAN)), "the score is NaN, expected a number");
  expect_contains(with(piece("x\xff")), "is not valid UTF-8");
  expect_contains(with(piece(std::string(5000, 'x'))), "piece 13: 5000 bytes, expected at most 4096");
  expect_contains(with(piece("x", 0, 7)), "expected a type from 1 to 6, found 7");
  expect_contains(with(piece(std::string("x\0y", 3), 0, kUserDefined)), "has a NUL in it");
  expect_contains(with(piece(std::string("x\0y", 3))), "has a NUL in it");
  expect_contains(with(piece("x", 0, kUnknown)), "piece 13 \"x\" is of type UNKNOWN, and so is piece 0; expected one");
  auto none = parts();
  none.pieces[0] = piece("<unk>");
  expect_contains(refusal(none.bytes()), "none of 13 pieces is of type UNKNOWN; expected one");
  auto empty = parts();
  empty.pieces.clear();
  expect_contains(refusal(empty.bytes()), "none of 0 pieces");
}

TEST_F(SentencePiece, RefusesBytePieces) {
  auto p = parts(2, true);
  p.pieces[kFirstByte + 10] = piece("<0x0a>", 0, kByte);
  expect_contains(refusal(p.bytes()), "piece 23 \"<0x0a>\" is of type BYTE, expected <0x00> to <0xFF>");
  p.pieces[kFirstByte + 10] = piece("<0x0A>");
  expect_contains(refusal(p.bytes()), "there is no piece <0x0A> of type BYTE");
  auto unset = parts();
  unset.pieces.push_back(piece("<0x0A>", 0, kByte));
  expect_contains(refusal(unset.bytes()), "trainer_spec.byte_fallback is not set");
}

TEST_F(SentencePiece, RefusesNestingThatTheLibraryHasNoRoomFor) {
  auto p = parts();
  for (int i = 1; i <= 64; ++i) p.pieces.push_back(piece(std::string(i, '#'), 0, kUserDefined));
  EXPECT_EQ(open(p.bytes())->encode(std::string(65, '#'), false), (Ids{8, 76, 13}));
  p.pieces.push_back(piece(std::string(65, '#'), 0, kUserDefined));
  expect_contains(refusal(p.bytes()), "begins with 64 others, the library has room for 63");
}

TEST_F(SentencePiece, RefusesWhatCannotBeAdded) {
  auto p = parts();
  p.pieces[1] = piece("<s>");
  p.pieces[2] = piece("</t>", 0, kControl);
  EXPECT_EQ(open(p.bytes())->size(), 13);
  expect_contains(refusal(p.bytes(), {true, false}), "BOS is to be added, but no control piece is it");
  expect_contains(refusal(p.bytes(), {false, true}), "EOS is to be added, but no control piece is it");
}

TEST_F(SentencePiece, SaysWhatTheLibrarySays) {
  auto p = parts();
  p.rest = text(4, text(1, text(1, "he") + text(2, "▁ h e")));  // a self-test that fails
  expect_contains(refusal(p.bytes()), "the sentencepiece library refuses it");
  p.rest = text(4, text(1, text(1, "he") + text(2, "▁he")));
  EXPECT_EQ(open(p.bytes())->size(), 13);
}

// The normalizer's charsmap.

/// A trie with the one key "A" (unit 0 -> 0x41 ^ 1), whose value is where "o" begins in the replacements.
struct Trie {
  static constexpr uint32_t kNoLabel = 0x80000000;  // no child of any
  std::vector<uint32_t> units = std::vector<uint32_t>(256, kNoLabel);
  std::string replacements = std::string("h\0o\0", 4);
  Trie() {
    units[0] = 1 << 10;                                           // leads to unit 1
    units['A' ^ 1] = uint32_t('A' ^ 1 ^ 8) << 10 | 1 << 8 | 'A';  // a key, leads to unit 8
    units[8] = 0x80000002;                                        // the value 2
  }
  std::string bytes() const {
    const auto size = static_cast<uint32_t>(4 * units.size());
    std::string all(4 + size, '\0');
    std::memcpy(all.data(), &size, 4);
    std::memcpy(all.data() + 4, units.data(), size);
    return all + replacements;
  }
};

std::string with_charsmap(const std::string& charsmap, int field = 3) {
  auto p = parts();
  (field == 3 ? p.normalizer : p.rest) = field == 3 ? text(2, charsmap) : text(field, text(2, charsmap));
  return p.bytes();
}

TEST_F(SentencePiece, Normalizes) {
  const auto t = open(with_charsmap(Trie().bytes()));
  EXPECT_EQ(t->encode("hellA", false), (Ids{6, 7, 12}));
  EXPECT_EQ(t->pieces("AA", false).back().begin, 1u);
}

TEST_F(SentencePiece, RefusesCharsmaps) {
  const auto changed = [&](const std::function<void(Trie&)>& change, int field = 3) {
    Trie trie;
    change(trie);
    const auto message = refusal(with_charsmap(trie.bytes(), field));
    expect_contains(message, "precompiled_charsmap");
    return message;
  };
  expect_contains(refusal(with_charsmap("abc")), "found 3 bytes that begin with a size of 0");
  expect_contains(refusal(with_charsmap(Trie().bytes().substr(0, 1000))), "expected a trie in blocks of 1024 bytes");
  expect_contains(changed([](Trie& t) { t.replacements = ""; }), "expected a trie");
  expect_contains(changed([](Trie& t) { t.units.resize(255); }), "expected a trie");
  expect_contains(changed([](Trie& t) { t.replacements.assign(1, 'h'); }),
                  "the last replacement does not end with NUL");
  expect_contains(changed([](Trie& t) { t.replacements[2] = '\xe2'; }), "not valid UTF-8");
  expect_contains(changed([](Trie& t) { t.units[0] = 256 << 10; }), "unit 0 leads to unit 256 of 256");
  expect_contains(changed([](Trie& t) { t.units[8] = 0; }), "unit 64 is a key, but unit 8 is no value");
  expect_contains(changed([](Trie& t) { t.units[8] = 0x80000004; }), "no replacement begins at 4 of 4 bytes");
  expect_contains(changed([](Trie& t) { t.units[8] = 0x80000001; }), "no replacement begins at 1 of 4 bytes");
  expect_contains(changed([](Trie& t) { t.units['A' ^ 1] = uint32_t('A' ^ 1 ^ 1) << 10 | 'A'; }),
                  "a key of more than 256 bytes");  // a circle
  expect_contains(changed([](Trie& t) { t.units[8] = 0; }, 5), "denormalizer_spec");
}

TEST_F(SentencePiece, RefusesKeysThatTheLibraryHasNoRoomFor) {
  // "A" 33 times over: unit i leads to base i + 1, and the values are all at the bases.
  const auto chain = [](int keys) {
    Trie t;
    t.units.assign(size_t{256} * (keys + 1), Trie::kNoLabel);
    t.units[0] = 1 << 10;
    uint32_t base = 1;
    for (int i = 1; i <= keys; ++i) {
      const auto unit = base ^ 'A', next = uint32_t(256 * i);
      t.units[unit] = (unit ^ next) << 10 | 1 << 8 | 'A';
      t.units[next] = 0x80000002;
      base = next;
    }
    return t.bytes();
  };
  EXPECT_EQ(open(with_charsmap(chain(32)))->encode(std::string(32, 'A'), false), (Ids{8, 12}));
  expect_contains(refusal(with_charsmap(chain(33))), "more than 32 keys begin with each other");
}

}  // namespace
}  // namespace lockstep
