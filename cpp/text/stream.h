// Ids one by one to text, whole characters only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace lockstep {

/// The pieces together are the text of all ids, without special tokens.
class TextStream {
 public:
  /// `tokenizer` must outlive it.
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// What one more id adds to the text; nothing while its last character is unfinished.
  std::string add(int64_t id);
  /// What is left, also if it is no whole character.
  std::string finish();

 private:
  std::string piece() const;
  const Tokenizer& tokenizer_;
  std::vector<int64_t> ids_;
  size_t start_ = 0, shown_ = 0;  // ids from start_ are decoded again; those before shown_ were given out
};

}  // namespace lockstep
