// What tokenizer.json puts around the tokens of a text. mirrors tokenizers 0.23 processors
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/config_reader.h"
#include "text/tokenizer.h"

namespace lockstep {

struct PostProcessor {
  std::vector<Piece> before, after;  // special tokens around the text's own
  /// Are the spaces at a piece's ends left out of its range? And does the first piece keep one, as its own prefix?
  bool trims = false, keeps_prefix = false;
};

/// Of the object under `key`, which may be absent or null. Raises LoadError for a type that is not implemented
/// (implemented: Sequence, TemplateProcessing, ByteLevel), and for a template that does not hold the text once.
PostProcessor read_post_processor(ConfigReader& file, const std::string& key);

}  // namespace lockstep
