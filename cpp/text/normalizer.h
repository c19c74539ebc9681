// What tokenizer.json does to a text before anything else. mirrors tokenizers 0.23 normalizers
#pragma once

#include <memory>

#include "core/config_reader.h"
#include "text/tracked_text.h"

namespace lockstep {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(TrackedText& text) const = 0;
};

/// Of the object under `key`, which may be absent or null: then nothing changes. Raises LoadError for a type that is
/// not implemented (implemented: Sequence, NFC, Replace, Prepend).
std::unique_ptr<Normalizer> read_normalizer(ConfigReader& file, const std::string& key);

}  // namespace lockstep
