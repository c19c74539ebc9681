// How tokenizer.json makes text of tokens. mirrors tokenizers 0.23 decoders
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/config_reader.h"

namespace lockstep {

class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Tokens, as the vocabulary writes them, to parts of the text.
  virtual std::vector<std::string> apply(std::vector<std::string> tokens) const = 0;
};

/// Of the object under `key`, which may be absent or null: then tokens are joined by spaces. Raises LoadError for a
/// type that is not implemented (implemented: Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip).
std::unique_ptr<Decoder> read_decoder(ConfigReader& file, const std::string& key);

}  // namespace lockstep
