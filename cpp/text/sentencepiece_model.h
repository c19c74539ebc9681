// A SentencePiece `.model` file: what of it decides how text is tokenized, read strictly (format:
// github.com/google/sentencepiece, src/sentencepiece_model.proto).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

/// A precompiled charsmap: the size in bytes of a trie (4, little endian), its units of 4 bytes, then the replacements,
/// each ended by NUL. All that the trie leads to is checked when it is opened, so that match() need not look.
class SentencePieceCharsmap {
 public:
  /// `name` is for messages. Raises LoadError.
  SentencePieceCharsmap(std::string name, std::string_view bytes);

  /// The replacement of the longest key that `text` begins with, and that key's length, which is 0 if there is none.
  std::pair<std::string_view, size_t> match(std::string_view text) const;
  size_t longest_replacement() const { return longest_; }

 private:
  uint32_t unit(uint32_t i) const;
  std::string_view replacement(uint32_t begin) const;
  void check(uint32_t i, int depth, std::vector<uint8_t>& states) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::string name_;
  std::string_view trie_, replacements_;
  uint32_t units_ = 0;
  size_t longest_ = 0;
};

struct SentencePieceModel {
  enum Type { kUnigram = 1, kBpe = 2 };
  enum PieceType { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

  struct Entry {
    std::string_view text;
    float score = 0;
    int type = kNormal;
    /// Can it be found in text? Control pieces and the unknown one cannot; a byte only where nothing else is.
    bool in_text() const { return type == kNormal || type == kUserDefined || type == kUnused; }
  };

  struct Normalization {
    std::optional<SentencePieceCharsmap> charsmap;
    bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  };

  /// Raises LoadError naming the file and what is wrong.
  static std::unique_ptr<const SentencePieceModel> open(const std::string& path);
  SentencePieceModel() = default;
  SentencePieceModel(const SentencePieceModel&) = delete;  // its views are into its own bytes
  SentencePieceModel& operator=(const SentencePieceModel&) = delete;

  std::string bytes;
  std::vector<Entry> pieces;
  uint64_t type = kUnigram;
  bool byte_fallback = false, treat_whitespace_as_suffix = false;
  std::string_view bos = "<s>", eos = "</s>", unk_surface = " \u2047 ";
  Normalization normalization;
  std::optional<Normalization> denormalization;  // of what was decoded; only with a charsmap
  int32_t unknown = 0;                           // the id of the one piece of that type
};

/// The byte that a piece <0x0A> stands for, or -1.
int sentencepiece_byte(std::string_view text);

}  // namespace lockstep
