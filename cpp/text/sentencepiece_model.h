// A SentencePiece `.model` file before the library is given it, which trusts what it reads.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

/// Reads a model and checks everything in it that the library would trust. Returns how many bytes its normalizer may
/// put for one character, at most. Raises LoadError naming the file and what is wrong with it.
size_t check_sentencepiece(const std::string& path, std::string_view bytes);

}  // namespace lockstep
