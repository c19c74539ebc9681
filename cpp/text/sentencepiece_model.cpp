#include "text/sentencepiece_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/error.h"
#include "core/json.h"
#include "text/utf8.h"

namespace lockstep {

namespace {

using Model = SentencePieceModel;

constexpr size_t kPieceLimit = 4096;   // trainers write up to 512 characters; the longest bounds the time to encode
constexpr size_t kUnigramNested = 64;  // the sentencepiece package looks at so many that begin at one place
constexpr size_t kTrieLimit = size_t{4} << 20;  // NFKC is 173 KB
constexpr int kKeyLimit = 256;

std::string quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool is_utf8(std::string_view text) { return valid_utf8(text) == text; }

/// The fields of one protobuf message, in the order of its bytes. Every length is held against what is there, and a
/// field that the format has once is taken once: a parser lets the last one win.
class Message {
 public:
  enum Wire { kVarint = 0, k64 = 1, kBytes = 2, k32 = 5 };

  Message(std::string name, std::string_view bytes, size_t offset)
      : name_(std::move(name)), bytes_(bytes), offset_(offset) {}

  bool next() {
    if (at_ == bytes_.size()) return false;
    start_ = at_;
    const auto tag = varint();
    number_ = tag >> 3, wire_ = static_cast<int>(tag & 7);
    if (number_ == 0 || number_ > 0x1fffffff) fail("expected a field number from 1 to 536870911, found {}", number_);
    switch (wire_) {
      case kVarint:
        value_ = varint();
        break;
      case k64:
        content_ = take(8);
        break;
      case kBytes:
        content_ = take(varint());
        break;
      case k32:
        content_ = take(4);
        break;
      default:
        fail("expected wire type 0, 1, 2 or 5, found {}", wire_);
    }
    return true;
  }

  uint64_t number() const { return number_; }
  size_t offset() const { return offset_ + static_cast<size_t>(content_.data() - bytes_.data()); }  // of bytes()

  std::string_view bytes() const { return expect(kBytes), content_; }
  std::string_view bytes_once() { return once(), bytes(); }
  uint64_t integer_once() { return once(), expect(kVarint), value_; }
  bool flag_once() {
    const auto value = integer_once();
    if (value > 1) fail("field {}: expected 0 or 1, found {}", number_, value);
    return value == 1;
  }
  float float_once() {
    once(), expect(k32);
    uint32_t bits = 0;
    for (int i = 3; i >= 0; --i) bits = bits << 8 | static_cast<unsigned char>(content_[i]);
    return std::bit_cast<float>(bits);
  }

  template <class... T>
  [[noreturn]] void fail(fmt::format_string<T...> what, T&&... values) const {
    throw LoadError(
        fmt::format("{}: at byte {}: {}", name_, offset_ + start_, fmt::format(what, std::forward<T>(values)...)));
  }
  [[noreturn]] void fail_unknown() const { fail("field {} is none that this format has here", number_); }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at_ == bytes_.size()) fail("the last number has no end; is the file cut short?");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      if (shift == 63 && byte > 1) break;
      value |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    fail("expected a number of at most 64 bits");
  }
  std::string_view take(uint64_t size) {
    if (size > bytes_.size() - at_) {
      fail("a field of {} bytes, but {} are left; is the file cut short?", size, bytes_.size() - at_);
    }
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  void expect(Wire wire) const {
    if (wire_ != wire) fail("field {}: expected wire type {}, found {}", number_, int(wire), wire_);
  }
  void once() {
    const auto bit = uint64_t{1} << (number_ & 63);  // fields that are taken once have numbers below 64
    if (seen_ & bit) fail("field {} is there twice", number_);
    seen_ |= bit;
  }

  std::string name_;
  std::string_view bytes_;
  size_t offset_, at_ = 0, start_ = 0;
  uint64_t number_ = 0, value_ = 0, seen_ = 0;
  int wire_ = 0;
  std::string_view content_;
};

Model::Entry read_piece(const std::string& path, size_t id, std::string_view bytes, size_t offset) {
  Model::Entry piece;
  Message message(fmt::format("{}: piece {}", path, id), bytes, offset);
  while (message.next()) {
    switch (message.number()) {
      case 1:
        piece.text = message.bytes_once();
        break;
      case 2:
        piece.score = message.float_once();
        if (std::isnan(piece.score)) message.fail("the score is NaN, expected a number");
        break;
      case 3: {
        const auto type = message.integer_once();
        if (type < 1 || type > 6) message.fail("expected a type from 1 to 6, found {}", type);
        piece.type = static_cast<int>(type);
        break;
      }
      default:
        message.fail_unknown();
    }
  }
  return piece;
}

void read_trainer(Model& model, const std::string& path, std::string_view bytes, size_t offset) {
  Message message(path + ": trainer_spec", bytes, offset);
  const auto name = [&](std::string_view& piece) {
    const auto text = message.bytes_once();
    if (!text.empty()) piece = text;
  };
  while (message.next()) {
    switch (message.number()) {
      case 3:
        model.type = message.integer_once();
        if (model.type != Model::kUnigram && model.type != Model::kBpe) {
          const auto* meaning = model.type == 3 ? " (WORD)" : model.type == 4 ? " (CHAR)" : "";
          message.fail("expected model_type 1 (UNIGRAM) or 2 (BPE), found {}{}", model.type, meaning);
        }
        break;
      case 24:
        model.treat_whitespace_as_suffix = message.flag_once();
        break;
      case 35:
        model.byte_fallback = message.flag_once();
        break;
      case 44:
        model.unk_surface = message.bytes_once();
        if (!is_utf8(model.unk_surface)) message.fail("unk_surface is not valid UTF-8");
        break;
      case 46:
        name(model.bos);
        break;
      case 47:
        name(model.eos);
        break;
      default:
        break;  // how it was trained
    }
  }
}

/// normalizer_spec or denormalizer_spec
Model::Normalization read_normalization(const std::string& name, std::string_view bytes, size_t offset) {
  Message message(name, bytes, offset);
  Model::Normalization spec;
  while (message.next()) {
    switch (message.number()) {
      case 1:  // its name
      case 6:  // normalization_rule_tsv, what the charsmap was made of
        message.bytes_once();
        break;
      case 2:
        if (const auto charsmap = message.bytes_once(); !charsmap.empty()) spec.charsmap.emplace(name, charsmap);
        break;
      case 3:
        spec.add_dummy_prefix = message.flag_once();
        break;
      case 4:
        spec.remove_extra_whitespaces = message.flag_once();
        break;
      case 5:
        spec.escape_whitespaces = message.flag_once();
        break;
      default:
        message.fail_unknown();
    }
  }
  return spec;
}

void read(Model& model, const std::string& path) {
  bool trainer = false, normalizer = false;
  Message message(path, model.bytes, 0);
  while (message.next()) {
    switch (message.number()) {
      case 1:
        model.pieces.push_back(read_piece(path, model.pieces.size(), message.bytes(), message.offset()));
        break;
      case 2:
        read_trainer(model, path, message.bytes_once(), message.offset());
        trainer = true;
        break;
      case 3:
        model.normalization = read_normalization(path + ": normalizer_spec", message.bytes_once(), message.offset());
        normalizer = true;
        break;
      case 4:  // self_test_data, which newer releases no longer have
        message.bytes_once();
        break;
      case 5: {
        auto spec = read_normalization(path + ": denormalizer_spec", message.bytes_once(), message.offset());
        if (spec.charsmap) model.denormalization = std::move(spec);
        break;
      }
      default:
        message.fail_unknown();
    }
  }
  // They come after the pieces, so a file that ends between two fields is without them.
  if (!trainer || !normalizer) {
    throw LoadError(fmt::format("{}: {} pieces and no {}; is the file cut short?", path, model.pieces.size(),
                                trainer ? "normalizer_spec" : "trainer_spec"));
  }
}

void check_pieces(Model& model, const std::string& path) {
  const auto fail = [&](size_t id, const std::string& what) {
    throw LoadError(fmt::format("{}: piece {} {} {}", path, id, quoted(model.pieces[id].text), what));
  };
  std::unordered_map<std::string_view, size_t> ids;
  ids.reserve(model.pieces.size());
  std::optional<size_t> unknown;
  std::array<bool, 256> bytes{};
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    if (piece.text.empty()) fail(id, "is empty");
    if (piece.text.size() > kPieceLimit) {
      throw LoadError(
          fmt::format("{}: piece {}: {} bytes, expected at most {}", path, id, piece.text.size(), kPieceLimit));
    }
    if (!is_utf8(piece.text)) fail(id, "is not valid UTF-8");
    if (piece.text.find('\0') != piece.text.npos) fail(id, "has a NUL in it, which the sentencepiece package refuses");
    const auto [other, is_new] = ids.emplace(piece.text, id);
    if (!is_new) fail(id, fmt::format("is piece {} as well, expected every piece once", other->second));
    if (piece.type == Model::kUnknown) {
      if (unknown) fail(id, fmt::format("is of type UNKNOWN, and so is piece {}; expected one", *unknown));
      unknown = id;
    }
    if (piece.type == Model::kByte) {
      const auto byte = sentencepiece_byte(piece.text);
      if (byte < 0) fail(id, "is of type BYTE, expected <0x00> to <0xFF>");
      if (!model.byte_fallback) fail(id, "is of type BYTE, but trainer_spec.byte_fallback is not set");
      bytes[byte] = true;
    }
  }
  if (!unknown) {
    throw LoadError(fmt::format("{}: none of {} pieces is of type UNKNOWN; expected one", path, model.pieces.size()));
  }
  model.unknown = static_cast<int32_t>(*unknown);
  const auto missing = std::find(bytes.begin(), bytes.end(), false) - bytes.begin();
  if (model.byte_fallback && missing < 256) {
    throw LoadError(fmt::format("{}: trainer_spec.byte_fallback is set, but there is no piece <0x{:02X}> of type BYTE",
                                path, missing));
  }
}

void check_nesting(const Model& model, const std::string& path) {
  std::vector<std::string_view> pieces, begun;
  for (const auto& piece : model.pieces) {
    if (piece.in_text()) pieces.push_back(piece.text);
  }
  std::sort(pieces.begin(), pieces.end());
  for (const auto piece : pieces) {
    while (!begun.empty() && !piece.starts_with(begun.back())) begun.pop_back();
    begun.push_back(piece);
    if (begun.size() > kUnigramNested) {
      throw LoadError(fmt::format("{}: piece {} begins with {} others, of which the sentencepiece package sees {}",
                                  path, quoted(piece), begun.size() - 1, kUnigramNested));
    }
  }
}

// Units of the charsmap's trie, as the Darts-clone library lays them out.
bool is_value(uint32_t unit) { return unit >> 31; }
uint32_t label(uint32_t unit) { return unit & 0xff; }
bool has_value(uint32_t unit) { return unit >> 8 & 1; }
uint32_t offset(uint32_t unit) { return (unit >> 10) << (unit >> 6 & 8); }

}  // namespace

int sentencepiece_byte(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const auto high = kDigits.find(text[3]), low = kDigits.find(text[4]);
  return high == kDigits.npos || low == kDigits.npos ? -1 : static_cast<int>(high * 16 + low);
}

void SentencePieceCharsmap::fail(const std::string& what) const {
  throw LoadError(fmt::format("{}: precompiled_charsmap: {}", name_, what));
}

SentencePieceCharsmap::SentencePieceCharsmap(std::string name, std::string_view bytes) : name_(std::move(name)) {
  uint32_t size = 0;
  for (size_t i = std::min<size_t>(bytes.size(), 4); i-- > 0;) size = size << 8 | static_cast<unsigned char>(bytes[i]);
  if (bytes.size() < 4 || size == 0 || size % 1024 || size > kTrieLimit || size >= bytes.size() - 4) {
    fail(fmt::format(
        "expected a trie in blocks of 1024 bytes and replacements, found {} bytes that begin with a size of {}",
        bytes.size(), size));
  }
  trie_ = bytes.substr(4, size), replacements_ = bytes.substr(4 + size), units_ = size / 4;
  if (replacements_.back() != '\0') fail("the last replacement does not end with NUL");
  if (!is_utf8(replacements_)) fail("the replacements are not valid UTF-8");
  for (size_t at = 0; at < replacements_.size(); at += replacement(static_cast<uint32_t>(at)).size() + 1) {
    longest_ = std::max(longest_, replacement(static_cast<uint32_t>(at)).size());
  }
  std::vector<uint8_t> states(units_);
  check(0, 0, states);
}

uint32_t SentencePieceCharsmap::unit(uint32_t i) const {
  uint32_t value = 0;
  for (int byte = 3; byte >= 0; --byte) value = value << 8 | static_cast<unsigned char>(trie_[size_t{4} * i + byte]);
  return value;
}

std::string_view SentencePieceCharsmap::replacement(uint32_t begin) const {
  return replacements_.substr(begin, replacements_.find('\0', begin) - begin);
}

/// What unit i leads to. A child with label c is at the place that i leads to, ^ c: in the same block of 256 units, so
/// looking for one never leaves the trie.
void SentencePieceCharsmap::check(uint32_t i, int depth, std::vector<uint8_t>& states) const {
  enum { kNew, kBegun, kDone };
  if (states[i] == kDone) return;
  if (states[i] == kBegun) fail(fmt::format("unit {} leads to itself", i));
  if (depth > kKeyLimit) fail(fmt::format("a key of more than {} bytes", kKeyLimit));
  states[i] = kBegun;
  const auto to = i ^ offset(unit(i));
  if (to >= units_) fail(fmt::format("unit {} leads to unit {} of {}", i, to, units_));
  if (i > 0 && has_value(unit(i))) {
    const auto begin = unit(to) & 0x7fffffff;
    if (!is_value(unit(to))) fail(fmt::format("unit {} ends a key, but unit {} is no value", i, to));
    if (begin >= replacements_.size() || (begin > 0 && replacements_[begin - 1] != '\0')) {
      fail(fmt::format("unit {}: no replacement begins at {} of {} bytes", i, begin, replacements_.size()));
    }
  }
  for (uint32_t c = 0; c < 256; ++c) {
    if (!is_value(unit(to ^ c)) && label(unit(to ^ c)) == c) check(to ^ c, depth + 1, states);
  }
  states[i] = kDone;
}

std::pair<std::string_view, size_t> SentencePieceCharsmap::match(std::string_view text) const {
  std::pair<std::string_view, size_t> longest{"", 0};
  auto to = offset(unit(0));
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto at = to ^ c, here = unit(at);
    if (is_value(here) || label(here) != c) break;
    to = at ^ offset(here);
    if (has_value(here)) longest = {replacement(unit(to) & 0x7fffffff), i + 1};
  }
  return longest;
}

std::unique_ptr<const SentencePieceModel> SentencePieceModel::open(const std::string& path) {
  auto model = std::make_unique<SentencePieceModel>();
  model->bytes = read_text(path);
  if (model->bytes.empty()) throw LoadError(path + ": the file is empty, expected a SentencePiece model");
  if (model->bytes.starts_with("version https://git-lfs")) {
    throw LoadError(
        fmt::format("{}: looks like a Git LFS pointer of {} bytes, expected a SentencePiece model; run git lfs pull",
                    path, model->bytes.size()));
  }
  read(*model, path);
  check_pieces(*model, path);
  if (model->type == kUnigram) check_nesting(*model, path);
  return model;
}

}  // namespace lockstep
