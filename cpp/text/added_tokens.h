// Tokens that are cut out of a text before the model sees it. mirrors tokenizers 0.23 AddedVocabulary
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/config_reader.h"
#include "text/bpe.h"
#include "text/normalizer.h"

namespace lockstep {

class AddedTokens {
 public:
  /// Of the list under `key`. Raises LoadError for a token without text, ids that are not the ones that Hugging Face
  /// gives (the model's own, else the next after the vocabulary), and a text or an id that is there twice.
  AddedTokens(ConfigReader& file, const std::string& key, const Bpe& model, const Normalizer* normalizer);

  struct Found {
    size_t begin, end;
    std::optional<int32_t> id;  // none: text between tokens
  };
  /// Cuts a text, as it was given or as the normalizer left it, by the tokens that belong there.
  std::vector<Found> cut(std::string_view text, bool normalized) const;
  /// Are there tokens that are looked for in normalized text?
  bool any_normalized() const { return tries_[1].any(); }

  std::optional<int64_t> id_of(std::string_view token) const;
  const std::string* token(int64_t id) const;  // or null
  bool is_special(int64_t id) const;
  /// One past the largest id, or 0.
  int64_t end() const { return end_; }

 private:
  struct Token {
    std::string text;
    bool single_word = false, lstrip = false, rstrip = false, special = false;
  };
  /// Finds the longest token that begins at a byte.
  class Trie {
   public:
    void put(std::string_view text, int32_t id);
    bool any() const { return !nodes_.empty(); }
    bool begins(char first) const { return starts_[static_cast<unsigned char>(first)]; }
    /// -> bytes of the longest token at `at`, or 0.
    size_t longest(std::string_view text, size_t at, int32_t& id) const;

   private:
    struct Node {
      int32_t id = -1;
      std::vector<std::pair<char, int32_t>> next;  // sorted
    };
    std::vector<Node> nodes_;
    bool starts_[256] = {};
  };

  std::unordered_map<int64_t, Token> tokens_;
  std::unordered_map<std::string, int64_t> ids_;
  Trie tries_[2];  // of tokens looked for as given, and in normalized text
  int64_t end_ = 0;
};

}  // namespace lockstep
