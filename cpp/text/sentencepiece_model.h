// What a SentencePiece `.model` file says, and whether the library may be given it: it trusts what it reads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

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
  std::string_view unk_surface;
  std::string_view charsmap, decoding_charsmap;
  size_t longest_replacement = 0;  // bytes that the normalizer may put for one character
};

/// Reads and checks everything that the library would trust; `bytes` must outlive the result. Raises LoadError naming
/// the file and what is wrong with it.
SentencePieceModel read_sentencepiece(const std::string& path, std::string_view bytes);

}  // namespace lockstep
