// tokenizer.json: added tokens -> normalizer -> pre-tokenizer -> model -> post-processor, and a decoder for the way
// back.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace lockstep {

/// Raises LoadError for a file that is none, for a component that is not implemented, by its name, and for parts that
/// do not hold together.
std::unique_ptr<Tokenizer> open_tokenizer_json(const std::string& path);

}  // namespace lockstep
