// How tokenizer.json cuts a text into words before the model sees it. mirrors tokenizers 0.23 pre_tokenizers
#pragma once

#include <memory>
#include <vector>

#include "core/config_reader.h"
#include "text/tracked_text.h"

namespace lockstep {

struct Span {
  size_t begin, end;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Cuts the spans of `text` further; none is empty. A prefix may be put before a span, which changes the text.
  virtual void apply(TrackedText& text, std::vector<Span>& spans) const = 0;
  /// Are the words' bytes written in the byte-level alphabet from here on?
  virtual bool byte_level() const { return false; }
};

/// Of the object under `key`, which may be absent or null: then a text is one word. Raises LoadError for a type that is
/// not implemented (implemented: Sequence, Split, Digits, ByteLevel).
std::unique_ptr<PreTokenizer> read_pre_tokenizer(ConfigReader& file, const std::string& key);

}  // namespace lockstep
