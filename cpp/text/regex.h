// The regular expressions of tokenizer.json: Oniguruma, which Hugging Face's tokenizers use as well, with their Unicode
// tables in place of the library's own.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

struct re_pattern_buffer;
struct re_registers;
struct OnigMatchParamStruct;

namespace lockstep {

class Regex {
 public:
  /// `where` names the place in messages. Raises LoadError for what is no pattern, and for a class without a table.
  Regex(const std::string& pattern, const std::string& where);

  /// Finds one match after the other in one text, which must outlive it.
  class Matches {
   public:
    Matches(const Regex& regex, std::string_view text);
    /// The next match as [begin, end), or false. Raises InputError where the expression backtracks without end.
    bool next(size_t& begin, size_t& end);

   private:
    const Regex& regex_;
    std::string_view text_;
    size_t from_ = 0, last_end_ = std::string_view::npos;
    std::shared_ptr<re_registers> region_;
    std::shared_ptr<OnigMatchParamStruct> limits_;
  };

 private:
  std::string pattern_, where_;
  std::shared_ptr<re_pattern_buffer> compiled_;
};

/// `pattern` with every \p{..}, \w and \d written out as ranges. Raises LoadError for a class without a table.
std::string with_own_classes(std::string_view pattern, const std::string& where);

}  // namespace lockstep
