// A tokenizer: text to ids and back, as the checkpoint's own files say.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct Piece {
  int64_t id;
  std::string text;   // as the vocabulary writes it
  size_t begin, end;  // code points of the text that was given
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// `text` is valid UTF-8 (see valid_utf8). special: add what the file says is added (BOS, ...). Raises InputError
  /// where the file's regex backtracks without end.
  virtual std::vector<int64_t> encode(std::string_view text, bool special) const = 0;
  /// The same ids, with what each stands for and where it came from.
  virtual std::vector<Piece> pieces(std::string_view text, bool special) const = 0;
  /// An id that the tokenizer does not know is nothing. skip_special: special tokens are left out.
  virtual std::string decode(std::span<const int64_t> ids, bool skip_special) const = 0;
  virtual std::optional<int64_t> id_of(std::string_view token) const = 0;
  /// Ids run from 0 to size - 1.
  virtual int64_t size() const = 0;
  /// The token that encode() puts first, if it puts one.
  virtual std::optional<int64_t> bos() const = 0;
};

}  // namespace lockstep
