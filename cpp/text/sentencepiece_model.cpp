#include "text/sentencepiece_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "text/utf8.h"

namespace lockstep {

namespace {

/// What of the file decides how text is tokenized. Views into its bytes.
struct SentencePieceModel {
  struct Piece {
    std::string_view text;
    float score = 0;
    int type = 1;  // NORMAL
  };
  std::vector<Piece> pieces;
  uint64_t type = 1;  // UNIGRAM, where the file does not say
  bool byte_fallback = false;
  std::string_view charsmap, decoding_charsmap;
};

// What the library has room for. It does not check.
constexpr int kCharsmapMatches = 32;       // keys of the charsmap that begin at one place
constexpr size_t kUserDefinedNested = 64;  // user-defined pieces that begin at one place

// Not the library's: trainers write up to 512 characters, and the time to encode grows with the longest.
constexpr size_t kPieceLimit = 4096;
constexpr int kCharsmapKeyLimit = 256;

constexpr const char* kModelTypes[] = {"none", "UNIGRAM", "BPE", "WORD", "CHAR"};
constexpr uint64_t kBpe = 2;
enum PieceType { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
constexpr const char* kPieceTypes[] = {"", "NORMAL", "UNKNOWN", "CONTROL", "USER_DEFINED", "UNUSED", "BYTE"};

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

SentencePieceModel::Piece read_piece(const std::string& path, size_t id, std::string_view bytes, size_t offset) {
  SentencePieceModel::Piece piece;
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
        if (type < kNormal || type > kByte)
          message.fail("expected a type from {} to {}, found {}", int(kNormal), int(kByte), type);
        piece.type = static_cast<int>(type);
        break;
      }
      default:
        message.fail_unknown();
    }
  }
  return piece;
}

void read_trainer(SentencePieceModel& model, const std::string& path, std::string_view bytes, size_t offset) {
  Message message(path + ": trainer_spec", bytes, offset);
  while (message.next()) {
    switch (message.number()) {
      case 3:
        model.type = message.integer_once();
        break;
      case 24:  // treat_whitespace_as_suffix
        message.flag_once();
        break;
      case 35:
        model.byte_fallback = message.flag_once();
        break;
      case 44:
        if (!is_utf8(message.bytes_once())) message.fail("unk_surface is not valid UTF-8");
        break;
      case 45:  // the names of the unknown, BOS, EOS and padding piece
      case 46:
      case 47:
      case 48:
        message.bytes_once();
        break;
      default:
        break;  // how it was trained
    }
  }
}

/// The charsmap of a normalizer_spec or denormalizer_spec.
std::string_view read_normalizer(const std::string& name, std::string_view bytes, size_t offset) {
  Message message(name, bytes, offset);
  std::string_view charsmap;
  while (message.next()) {
    switch (message.number()) {
      case 1:  // name
      case 6:  // normalization_rule_tsv
        message.bytes_once();
        break;
      case 2:
        charsmap = message.bytes_once();
        break;
      case 3:  // add_dummy_prefix
      case 4:  // remove_extra_whitespaces
      case 5:  // escape_whitespaces
        message.flag_once();
        break;
      default:
        message.fail_unknown();
    }
  }
  return charsmap;
}

SentencePieceModel read_fields(const std::string& path, std::string_view bytes) {
  SentencePieceModel model;
  bool trainer = false, normalizer = false;
  Message message(path, bytes, 0);
  while (message.next()) {
    const auto field = message.number();
    switch (field) {
      case 1:
        model.pieces.push_back(read_piece(path, model.pieces.size(), message.bytes(), message.offset()));
        break;
      case 2:
        read_trainer(model, path, message.bytes_once(), message.offset());
        trainer = true;
        break;
      case 3:
        model.charsmap = read_normalizer(path + ": normalizer_spec", message.bytes_once(), message.offset());
        normalizer = true;
        break;
      case 4:  // self_test_data: the library runs it
        message.bytes_once();
        break;
      case 5:
        model.decoding_charsmap = read_normalizer(path + ": denormalizer_spec", message.bytes_once(), message.offset());
        break;
      default:
        message.fail_unknown();
    }
  }
  // They come after the pieces, so a file that ends between two fields is without them.
  if (!trainer || !normalizer) {
    throw LoadError(fmt::format("{}: {} pieces and no {}; is the file cut short?", path, model.pieces.size(),
                                trainer ? "normalizer_spec" : "trainer_spec"));
  }
  return model;
}

/// The byte that a piece <0x0A> is, or -1.
int byte_of(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const auto high = kDigits.find(text[3]), low = kDigits.find(text[4]);
  return high == kDigits.npos || low == kDigits.npos ? -1 : static_cast<int>(high * 16 + low);
}

void check_pieces(const std::string& path, const SentencePieceModel& model) {
  const auto fail = [&](size_t id, const std::string& what) {
    throw LoadError(fmt::format("{}: piece {} {} {}", path, id, quoted(model.pieces[id].text), what));
  };
  std::unordered_map<std::string_view, size_t> ids;
  std::optional<size_t> unknown;
  std::array<bool, 256> bytes{};
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& [text, score, type] = model.pieces[id];
    if (text.empty()) fail(id, "is empty");
    if (text.size() > kPieceLimit) {
      throw LoadError(fmt::format("{}: piece {}: {} bytes, expected at most {}", path, id, text.size(), kPieceLimit));
    }
    if (!is_utf8(text)) fail(id, "is not valid UTF-8");
    const auto [other, is_new] = ids.emplace(text, id);
    if (!is_new) fail(id, fmt::format("is piece {} as well, expected every piece once", other->second));
    if (text.find('\0') != text.npos)
      fail(id, "has a NUL in it: the library's search trees end a text there; convert the model to a tokenizer.json");
    if (type == kUnknown) {
      if (unknown) fail(id, fmt::format("is of type UNKNOWN, and so is piece {}; expected one", *unknown));
      unknown = id;
    }
    if (type == kByte) {
      const auto byte = byte_of(text);
      if (byte < 0) fail(id, "is of type BYTE, expected <0x00> to <0xFF>");
      if (!model.byte_fallback) fail(id, "is of type BYTE, but trainer_spec.byte_fallback is not set");
      bytes[byte] = true;
    }
  }
  if (!unknown) {
    throw LoadError(fmt::format("{}: none of {} pieces is of type UNKNOWN; expected one", path, model.pieces.size()));
  }
  const auto missing = std::find(bytes.begin(), bytes.end(), false) - bytes.begin();
  if (model.byte_fallback && missing < 256) {
    throw LoadError(fmt::format("{}: trainer_spec.byte_fallback is set, but there is no piece <0x{:02X}> of type BYTE",
                                path, missing));
  }
}

void check_nesting(const std::string& path, const SentencePieceModel& model) {
  std::vector<std::string_view> symbols, begun;
  for (const auto& piece : model.pieces) {
    if (piece.type == kUserDefined) symbols.push_back(piece.text);
  }
  std::sort(symbols.begin(), symbols.end());
  for (const auto symbol : symbols) {
    while (!begun.empty() && !symbol.starts_with(begun.back())) begun.pop_back();
    begun.push_back(symbol);
    if (begun.size() > kUserDefinedNested) {
      throw LoadError(fmt::format("{}: user-defined piece {} begins with {} others, the library has room for {}", path,
                                  quoted(symbol), begun.size() - 1, kUserDefinedNested - 1));
    }
  }
}

/// A precompiled charsmap: the trie's size in bytes (4, little endian), its units of 4 bytes, then the replacements,
/// each ended by NUL. The library follows the units without looking where they lead, so it is done here first.
class Charsmap {
 public:
  Charsmap(std::string name, std::string_view bytes) : name_(std::move(name)) {
    const auto trie_size = bytes.size() < 4 ? 0 : word(bytes, 0);
    if (trie_size == 0 || trie_size % 1024 || trie_size >= bytes.size() - 4) {
      fail("expected a trie in blocks of 1024 bytes and replacements, found {} bytes that begin with a size of {}",
           bytes.size(), trie_size);
    }
    trie_ = bytes.substr(4, trie_size), replacements_ = bytes.substr(4 + trie_size);
    if (replacements_.back() != '\0') fail("the last replacement does not end with NUL");
    if (!is_utf8(replacements_)) fail("the replacements are not valid UTF-8");
    for (size_t at = 0, end = 0; at < replacements_.size(); at = end + 1) {
      end = replacements_.find('\0', at);
      longest_ = std::max(longest_, end - at);
    }
    index();
    matches_.assign(units(), -1);
    walk(0, 0);
  }

  size_t longest() const { return longest_; }

 private:
  static uint32_t word(std::string_view bytes, size_t at) {
    uint32_t value;
    std::memcpy(&value, bytes.data() + at, 4);  // the library reads them in the machine's order too
    return value;
  }
  uint32_t unit(uint32_t i) const { return word(trie_, size_t{4} * i); }
  uint32_t units() const { return static_cast<uint32_t>(trie_.size() / 4); }
  static bool has_label(uint32_t unit) { return !(unit >> 31); }  // else it is a value
  static uint32_t label(uint32_t unit) { return unit & 0xff; }

  /// A unit with label c is the child of every unit that leads to its own number ^ c, which is in the same block.
  void index() {
    first_.assign(units() + 1, 0);
    for (uint32_t i = 0; i < units(); ++i) {
      if (has_label(unit(i))) ++first_[(i ^ label(unit(i))) + 1];
    }
    for (uint32_t i = 0; i < units(); ++i) first_[i + 1] += first_[i];
    children_.resize(first_.back());
    auto next = first_;
    for (uint32_t i = 0; i < units(); ++i) {
      if (has_label(unit(i))) children_[next[i ^ label(unit(i))]++] = i;
    }
  }

  /// The most keys on a way from this unit on. A circle is an endless key.
  int walk(uint32_t i, int depth) {
    if (matches_[i] >= 0) return matches_[i];
    if (depth > kCharsmapKeyLimit) fail("a key of more than {} bytes", kCharsmapKeyLimit);
    const auto here = unit(i);
    const auto to = i ^ (here >> 10) << ((here >> 6) & 8);
    if (to >= units()) fail("unit {} leads to unit {} of {}", i, to, units());
    const bool is_key = i > 0 && (here >> 8 & 1);
    if (is_key) {
      const auto value = unit(to) & 0x7fffffff;
      if (has_label(unit(to))) fail("unit {} is a key, but unit {} is no value", i, to);
      if (value >= replacements_.size() || (value > 0 && replacements_[value - 1] != '\0')) {
        fail("unit {}: no replacement begins at {} of {} bytes", i, value, replacements_.size());
      }
    }
    int most = 0;
    for (auto child = first_[to]; child < first_[to + 1]; ++child) {
      most = std::max(most, walk(children_[child], depth + 1));
    }
    most += is_key;
    if (most > kCharsmapMatches) fail("more than {} keys begin with each other", kCharsmapMatches);
    return matches_[i] = most;
  }

  template <class... T>
  [[noreturn]] void fail(fmt::format_string<T...> what, T&&... values) const {
    throw LoadError(fmt::format("{}: precompiled_charsmap: {}", name_, fmt::format(what, std::forward<T>(values)...)));
  }

  std::string name_;
  std::string_view trie_, replacements_;
  size_t longest_ = 0;
  std::vector<uint32_t> first_, children_;  // the children of what leads to i: children_[first_[i], first_[i + 1])
  std::vector<int> matches_;                // -1: not walked yet
};

/// What release 0.1.97 of the library tokenizes otherwise than 0.2.3, the release of the Python package: Unigram rounds
/// and scores in another way, an UNUSED piece of a BPE model is found in text, and a control piece of one character is
/// found there too. Ids that differ in a few texts are worse than none.
void refuse_what_differs(const std::string& path, const SentencePieceModel& model) {
  if (model.type != kBpe) {
    const auto* const name = model.type < std::size(kModelTypes) ? kModelTypes[model.type] : "unknown";
    throw LoadError(
        fmt::format("{}: trainer_spec: model_type {} ({}) is not implemented (implemented: 2, BPE); convert the model "
                    "to a tokenizer.json",
                    path, model.type, name));
  }
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& [text, score, type] = model.pieces[id];
    const bool lone_control = type == kControl && count_code_points(text) == 1;
    if (type != kUnused && !lone_control) continue;
    throw LoadError(
        fmt::format("{}: piece {} {} is of type {}{}, which is not implemented; convert the model to a tokenizer.json",
                    path, id, quoted(text), kPieceTypes[type], lone_control ? " and one character" : ""));
  }
}

}  // namespace

size_t check_sentencepiece(const std::string& path, std::string_view bytes) {
  const auto model = read_fields(path, bytes);
  refuse_what_differs(path, model);
  check_pieces(path, model);
  check_nesting(path, model);
  if (!model.decoding_charsmap.empty()) Charsmap(path + ": denormalizer_spec", model.decoding_charsmap);
  return model.charsmap.empty() ? 0 : Charsmap(path + ": normalizer_spec", model.charsmap).longest();
}

}  // namespace lockstep
