// SentencePiece `.model` files of the BPE kind, tokenized by the sentencepiece library.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace lockstep {

/// What encode() adds where special tokens are asked for; tokenizer_config.json says so, the model file does not.
struct SentencePieceRules {
  bool add_bos = false, add_eos = false;
};

/// Everything that the library would trust is checked first. Raises LoadError naming the file and what is wrong: a Git
/// LFS pointer, cut short, another model type, an empty or repeated piece, no or two unknown pieces, a score that is
/// NaN, a broken normalizer, a BOS or EOS to add that the file does not have, ...
///
/// decode() is the sentencepiece package's: control pieces are nothing, runs of byte pieces are text with U+FFFD for
/// what is no UTF-8, the unknown piece is the file's unk_surface. skip_special takes control and unknown pieces out
/// before, so that the bytes on both sides of one are one run.
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path, SentencePieceRules rules);

}  // namespace lockstep
