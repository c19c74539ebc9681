// tokenizer.json: what each component does, and one clear error for every kind of bad file.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "files.h"
#include "text/byte_level.h"
#include "text/open.h"
#include "text/regex.h"
#include "text/tokenizer_json.h"
#include "text/utf8.h"

namespace lockstep {
namespace {

using nlohmann::json;
using testing::expect_contains;
using testing::message_of;
using Ids = std::vector<int64_t>;

/// Characters a to e and their merges ab, abc and de; byte-level, words split off at spaces.
json small() {
  json vocab = json::object();
  for (const char* token : {"a", "b", "c", "d", "e", "\u0120", "ab", "abc", "de", "\u0120a"})
    vocab[token] = vocab.size();
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", json::array({{{"id", 10}, {"content", "<s>"}, {"special", true}, {"normalized", false}}})},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers",
         json::array(
             {{{"type", "Split"}, {"pattern", {{"Regex", " ?\\p{L}+"}}}, {"behavior", "Isolated"}, {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}})}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", nullptr},
        {"vocab", vocab},
        {"merges", json::array({"a b", "ab c", json::array({"d", "e"}), "\u0120 a"})}}}};
}

class Tokenizers : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> open(const json& file) { return open_text(file.dump()); }
  std::unique_ptr<Tokenizer> open_text(const std::string& text) {
    testing::write_file(folder_ / "tokenizer.json", text);
    return open_tokenizer(folder_.str());
  }
  std::string refused(const json& file) {
    return message_of<LoadError>([&] { open(file); });
  }
  testing::TemporaryFolder folder_;
};

TEST_F(Tokenizers, MergesInTheOrderOfTheirRanks) {
  const auto t = open(small());
  EXPECT_EQ(t->encode("abc", true), Ids({7}));
  EXPECT_EQ(t->encode("abde", true), Ids({6, 8}));
  EXPECT_EQ(t->encode("cab ab ad", true), Ids({2, 6, 5, 6, 9, 3}));
  EXPECT_EQ(t->encode("", true), Ids());
  EXPECT_EQ(t->size(), 11);
}

TEST_F(Tokenizers, OfEqualRanksTheLeftmostIsMergedFirst) {
  auto file = small();
  file["model"]["vocab"] = {{"a", 0}, {"aa", 1}, {"aaa", 2}};
  file["model"]["merges"] = {"a a", "aa a"};
  file["added_tokens"] = json::array();
  EXPECT_EQ(open(file)->encode("aaaaa", true), Ids({1, 2}));
}

TEST_F(Tokenizers, ACharacterThatNothingStandsForIsNothing) {
  EXPECT_EQ(open(small())->encode("axb", true), Ids({6}));  // as Hugging Face does without an unk_token
}

TEST_F(Tokenizers, AddedTokensAreCutOutFirst) {
  auto file = small();
  EXPECT_EQ(open(file)->encode("a<s>b<s", true), Ids({0, 10, 1}));
  auto& token = file["added_tokens"][0];
  token["lstrip"] = token["rstrip"] = true;
  EXPECT_EQ(open(file)->encode("a  <s> b", true), Ids({0, 10, 1}));
  token["lstrip"] = token["rstrip"] = false;
  token["single_word"] = true;
  EXPECT_EQ(open(file)->encode("a<s>", true), Ids({0}));
  EXPECT_EQ(open(file)->encode(" <s> ", true), Ids({5, 10, 5}));
}

TEST_F(Tokenizers, OfAddedTokensTheLongestIsFound) {
  auto file = small();
  file["added_tokens"].push_back({{"id", 11}, {"content", "<s>a"}, {"normalized", false}});
  EXPECT_EQ(open(file)->encode("<s>ab", true), Ids({11, 1}));
}

TEST_F(Tokenizers, PiecesSayWhereTheyCameFrom) {
  const auto pieces = open(small())->pieces("\u00e9 abc", true);  // nothing stands for the first character
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[1].text, "abc");
  EXPECT_EQ(std::pair(pieces[0].begin, pieces[0].end), std::pair(size_t{1}, size_t{2}));
  EXPECT_EQ(std::pair(pieces[1].begin, pieces[1].end), std::pair(size_t{2}, size_t{5}));
}

TEST_F(Tokenizers, TheTemplateStandsAroundTheText) {
  auto file = small();
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", json::array({{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
      {"pair", json::array()},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", json::array({10})}, {"tokens", json::array({"<s>"})}}}}}};
  const auto t = open(file);
  EXPECT_EQ(t->encode("a", true), Ids({10, 0}));
  EXPECT_EQ(t->encode("a", false), Ids({0}));
  EXPECT_EQ(t->bos(), 10);
  EXPECT_EQ(t->decode(Ids({10, 0}), false), "<s>a");
  EXPECT_EQ(t->decode(Ids({10, 0, 999}), true), "a");
  file["post_processor"]["special_tokens"]["<s>"]["ids"] = {3};
  expect_contains(refused(file), "\"<s>\" has id 3, which the vocabulary does not give it");
}

TEST_F(Tokenizers, BytesStandInForWhatIsNotThere) {
  auto file = small();
  json vocab = {{"<unk>", 0}, {"\u2581", 1}, {"a", 2}};
  for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = 3 + b;
  file["model"] = {{"type", "BPE"},         {"unk_token", "<unk>"}, {"fuse_unk", true},
                   {"byte_fallback", true}, {"vocab", vocab},       {"merges", json::array()}};
  file["added_tokens"] = json::array();
  file["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers", json::array({{{"type", "Prepend"}, {"prepend", "\u2581"}},
                                   {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}})}};
  file["pre_tokenizer"] = nullptr;
  file["decoder"] = {
      {"type", "Sequence"},
      {"decoders", json::array({{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                                {{"type", "ByteFallback"}},
                                {{"type", "Fuse"}},
                                {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})}};
  const auto t = open(file);
  EXPECT_EQ(t->encode("a \u00e9", true), Ids({1, 2, 1, 3 + 0xc3, 3 + 0xa9}));
  EXPECT_EQ(t->decode(Ids({1, 2, 1, 3 + 0xc3, 3 + 0xa9}), false), "a \u00e9");
  EXPECT_EQ(t->decode(Ids({3 + 0xc3, 2}), false), "\ufffda");
}

TEST_F(Tokenizers, ALongWordIsNoQuadratic) {
  const auto t = open(small());
  EXPECT_EQ(t->encode(std::string(1 << 20, 'a'), true).size(), size_t{1} << 20);
}

TEST_F(Tokenizers, WhatIsNotImplementedIsRefusedByName) {
  auto file = small();
  file["normalizer"] = {{"type", "Lowercase"}};
  expect_contains(refused(file), "tokenizer.json /normalizer/type: \"Lowercase\" is not implemented");
  file = small();
  file["pre_tokenizer"] = {{"type", "Metaspace"}};
  expect_contains(refused(file), "/pre_tokenizer/type: \"Metaspace\" is not implemented");
  file = small();
  file["model"]["type"] = "WordPiece";
  expect_contains(refused(file), "/model/type: \"WordPiece\" is not implemented (implemented: BPE)");
  file = small();
  file["model"]["dropout"] = 0.1;
  expect_contains(refused(file), "/model/dropout: 0.1 is not implemented");
  file = small();
  file["decoder"] = {{"type", "CTC"}};
  expect_contains(refused(file), "/decoder/type: \"CTC\" is not implemented");
  file = small();
  file["post_processor"] = {{"type", "BertProcessing"}};
  expect_contains(refused(file), "/post_processor/type: \"BertProcessing\" is not implemented");
  file = small();
  file["truncation"] = {{"max_length", 5}};
  expect_contains(refused(file), "/truncation");
  file = small();
  file["model"]["something"] = 1;
  expect_contains(refused(file), "tokenizer.json /model/something: unknown key");
}

TEST_F(Tokenizers, ABrokenVocabularyIsNamed) {
  auto file = small();
  file["model"]["vocab"]["b"] = 0;
  expect_contains(refused(file), "\"b\" and \"a\" both have id 0; expected each id once");
  file = small();
  file["model"]["vocab"]["b"] = 77;
  expect_contains(refused(file), "\"b\" has id 77; expected ids from 0 to 9 without a gap");
  file = small();
  file["model"]["vocab"]["b"] = "1";
  expect_contains(refused(file), "\"b\" has id \"1\"; expected ids from 0 to 9 without a gap");
  file = small();
  file["model"]["unk_token"] = "<unk>";
  expect_contains(refused(file), "/model/unk_token: \"<unk>\" is not in the vocabulary");
}

TEST_F(Tokenizers, BrokenMergesAreNamed) {
  auto file = small();
  file["model"].erase("merges");
  expect_contains(refused(file), "/model/merges: expected a list of merges");
  file = small();
  file["model"]["merges"] = {"a b", "b b"};
  expect_contains(refused(file), "/model/merges/1: \"bb\" is not in the vocabulary");
  file = small();
  file["model"]["merges"] = {"a b c"};
  expect_contains(refused(file), "/model/merges/0: expected \"left right\" or [left, right], found \"a b c\"");
}

TEST_F(Tokenizers, BrokenAddedTokensAreNamed) {
  auto file = small();
  file["added_tokens"][0]["content"] = "";
  expect_contains(refused(file), "/added_tokens/0/content: token 10 is empty; expected some text");
  file = small();
  file["added_tokens"][0]["id"] = 12;
  expect_contains(refused(file), "/added_tokens/0/id: 12 of \"<s>\"; expected 10, the next after the vocabulary");
  file = small();
  file["added_tokens"][0]["content"] = "a";
  expect_contains(refused(file), "/added_tokens/0/id: 10 of \"a\"; expected 0, as the vocabulary has it");
  file = small();
  file["added_tokens"].push_back(file["added_tokens"][0]);
  expect_contains(refused(file), "/added_tokens/1");
}

TEST_F(Tokenizers, ABrokenFileIsNamed) {
  const auto text = small().dump();
  expect_contains(message_of<LoadError>([&] { open_text(text.substr(0, text.size() / 2)); }), "not valid JSON");
  expect_contains(message_of<LoadError>([&] { open_text("[]"); }), "expected an object");
  expect_contains(message_of<LoadError>([&] { open_text(""); }), "not valid JSON");
  expect_contains(message_of<LoadError>([&] { open_tokenizer(folder_ / "none"); }),
                  "expected a folder with a tokenizer");
  testing::TemporaryFolder empty;
  expect_contains(message_of<LoadError>([&] { open_tokenizer(empty.str()); }),
                  "no tokenizer.json and no tokenizer.model");
}

TEST_F(Tokenizers, ARegexThatIsNoneOrHasNoTableIsRefused) {
  auto file = small();
  auto& regex = file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  regex = "(a";
  expect_contains(refused(file), "its regex is none: end pattern with unmatched parenthesis");
  regex = "\\p{Klingon}";
  expect_contains(refused(file), "the class \\p{Klingon} in its regex is not implemented");
  regex = "\\bword";
  expect_contains(refused(file), "\\b in its regex is not implemented");
}

TEST_F(Tokenizers, ARegexThatBacktracksForEverIsRefused) {
  auto file = small();
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a+)+$";
  const auto t = open(file);
  EXPECT_EQ(t->encode("aaab", true).size(), 3u);
  expect_contains(message_of<InputError>([&] { t->encode(std::string(64, 'a').append("b"), true); }),
                  "backtracks without end on \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"...");
}

TEST(Text, InvalidUtf8IsWhatPythonMakesOfIt) {
  EXPECT_EQ(valid_utf8("a\xff"
                       "b"),
            "a\ufffd"
            "b");
  EXPECT_EQ(valid_utf8("\xe2\x82"), "\ufffd");                  // cut short: one
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "\ufffd\ufffd\ufffd");  // a surrogate: one each
  EXPECT_EQ(valid_utf8("\xc0\xaf"), "\ufffd\ufffd");            // overlong
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), "\ufffd\ufffd\ufffd\ufffd");
  EXPECT_EQ(valid_utf8("\xf0\x9f\x98\x80"), "\U0001f600");
}

TEST(Text, TheAlphabetWritesEveryByteOnce) {
  std::string bytes;
  for (int b = 0; b < 256; ++b) bytes.push_back(static_cast<char>(b));
  const auto text = level_of_bytes(bytes);
  EXPECT_EQ(count_code_points(text), 256u);
  EXPECT_EQ(bytes_of_level(text), bytes);
  EXPECT_EQ(level_of_bytes(" \n"), "\u0120\u010a");
  EXPECT_EQ(bytes_of_level(" "), std::nullopt);
}

TEST(Text, ClassesAreWrittenOut) {
  EXPECT_EQ(with_own_classes("[^\\s\\\\]x\\x{41}", "f"), "[^\\s\\\\]x\\x{41}");
  const auto ours = with_own_classes("\\p{Zl}[a\\p{Zl}\\P{Zl}]\\p{^Zl}", "f");
  EXPECT_EQ(ours, "[\\x{2028}-\\x{2028}][a\\x{2028}-\\x{2028}[^\\x{2028}-\\x{2028}]][^\\x{2028}-\\x{2028}]");
  // A bracket that closes right behind one that opens is a character, an escaped one too.
  const std::string zl = "\\x{2028}-\\x{2028}";
  EXPECT_EQ(with_own_classes("[]\\p{Zl}]\\p{Zl}", "f"), "[]" + zl + "][" + zl + "]");
  EXPECT_EQ(with_own_classes("[^]\\p{Zl}]\\p{Zl}", "f"), "[^]" + zl + "][" + zl + "]");
  EXPECT_EQ(with_own_classes("[^^]\\p{Zl}", "f"), "[^^][" + zl + "]");
  EXPECT_EQ(with_own_classes("[\\[]\\p{Zl}", "f"), "[\\[][" + zl + "]");
}

}  // namespace
}  // namespace lockstep
