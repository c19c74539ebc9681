// {"String": ..} or {"Regex": ..}: what Split and Replace look for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/config_reader.h"
#include "text/regex.h"

namespace lockstep {

class Pattern {
 public:
  /// Of the object under `key`. Raises LoadError for another shape, an empty string and a regex that is none.
  Pattern(ConfigReader& owner, const std::string& key);

  /// Calls `found(begin, end)` for every match, from left to right; none is inside of another.
  template <class F>
  void each(std::string_view text, F&& found) const {
    if (regex_) {
      Regex::Matches matches(*regex_, text);
      for (size_t begin, end; matches.next(begin, end);) found(begin, end);
      return;
    }
    for (size_t at = text.find(string_); at != std::string_view::npos; at = text.find(string_, at + string_.size())) {
      found(at, at + string_.size());
    }
  }

 private:
  std::string string_;
  std::optional<Regex> regex_;
};

}  // namespace lockstep
