// Byte-pair encoding: a word's characters, merged pair by pair in the order in which the merges were learnt.
// mirrors tokenizers 0.23 models/bpe
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/config_reader.h"

namespace lockstep {

struct Symbol {
  int32_t id;
  uint32_t bytes;  // of the word
};

class Bpe {
 public:
  /// Of the object under `key`. byte_level: words come as bytes, and the vocabulary writes them in that alphabet.
  /// Raises LoadError for another type of model, what is not implemented, and a vocabulary or merges that do not hold
  /// together.
  Bpe(ConfigReader& file, const std::string& key, bool byte_level);

  /// Appends a word's tokens. Many threads may call it; one at a time remembers words.
  class Encoder {
   public:
    explicit Encoder(const Bpe& model);
    void encode(std::string_view word, std::vector<Symbol>& out);

   private:
    const Bpe& model_;
    std::unique_lock<std::mutex> memory_;  // owned or not
  };

  std::optional<int64_t> id_of(std::string_view token) const;
  /// As the vocabulary writes it, or null.
  const std::string* token(int64_t id) const;
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  struct Merge {
    int32_t rank, made;
  };
  /// (left, right) -> merge: open addressing, since this is asked for every pair of every word.
  class Merges {
   public:
    void reserve(size_t count);
    void put(int32_t left, int32_t right, Merge merge);
    const Merge* find(int32_t left, int32_t right) const;

   private:
    struct Slot {
      uint64_t key;
      Merge merge;
    };
    size_t home(uint64_t key) const { return (key * 0x9e3779b97f4a7c15ull) >> shift_; }
    std::vector<Slot> slots_;
    int shift_ = 63;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Words = std::unordered_map<std::string, std::vector<Symbol>, Hash, std::equal_to<>>;

  void read_vocab(ConfigReader& model);
  void read_merges(ConfigReader& model);
  void merge_word(std::string_view word, std::vector<Symbol>& out) const;
  void characters(std::string_view word, std::vector<Symbol>& out) const;
  std::string_view key_of(int64_t id) const;

  bool byte_level_, ignore_merges_ = false, byte_fallback_ = false, fuse_unk_ = false;
  std::optional<int32_t> unk_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;    // as the vocabulary writes it
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> words_;  // as a word has it, where that differs
  std::vector<std::string> tokens_;
  std::array<int32_t, 256> byte_ids_;      // of each byte, or -1
  std::vector<int32_t> character_ids_;     // of each code point, or -1; empty for bytes
  std::array<int32_t, 256> fallback_ids_;  // of "<0x00>" to "<0xFF>", or -1
  Merges merges_;
  mutable std::mutex memory_mutex_;
  mutable Words memory_;
};

}  // namespace lockstep
