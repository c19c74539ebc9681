#include "text/regex.h"

#include <fmt/format.h>
#include <oniguruma.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace lockstep {

namespace {

// What one search may try again, beside what its text's length alone explains. Oniguruma's own default.
constexpr unsigned long kRetries = 10'000'000;

std::string message(int code, const OnigErrorInfo* info = nullptr) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length = info ? onig_error_code_to_str(text, code, info) : onig_error_code_to_str(text, code);
  return {reinterpret_cast<const char*>(text), static_cast<size_t>(length)};
}

/// The first characters of a text, in quotes.
std::string beginning(std::string_view text) {
  size_t end = 0;
  for (int i = 0; i < 40 && end < text.size(); ++i) end += utf8_length(text[end]);
  return nlohmann::json(text.substr(0, end)).dump() + (end < text.size() ? "..." : "");
}

const OnigUChar* bytes(const char* text) { return reinterpret_cast<const OnigUChar*>(text); }

void once() {
  static const int ready = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    return onig_initialize(encodings, 1);
  }();
  if (ready != ONIG_NORMAL) throw Error(fmt::format("Oniguruma cannot be used: {}", message(ready)));
}

std::string ranges_of(std::string_view name, const std::string& where, std::string_view as_written) {
  const auto ranges = unicode_class(name);
  if (ranges.empty()) {
    throw LoadError(fmt::format("{}: the class {} in its regex is not implemented", where, as_written));
  }
  std::string text;
  for (const auto& [first, last] : ranges) {
    text += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", static_cast<uint32_t>(first), static_cast<uint32_t>(last));
  }
  return text;
}

}  // namespace

std::string with_own_classes(std::string_view pattern, const std::string& where) {
  std::string out;
  int depth = 0;         // of brackets
  bool opening = false;  // just behind a bracket, where another that closes is a character
  const auto put = [&](std::string_view name, bool negated, std::string_view as_written) {
    const auto ranges = ranges_of(name, where, as_written);
    out += depth > 0 && !negated ? ranges : fmt::format("[{}{}]", negated ? "^" : "", ranges);
  };
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const bool opens = std::exchange(opening, false);
    if (c != '\\' || i + 1 == pattern.size()) {
      if (c == '[' && depth > 0 && pattern.substr(i, 2) == "[:") {
        throw LoadError(fmt::format("{}: the class {} in its regex is not implemented", where, pattern.substr(i, 9)));
      }
      if (c == '[') ++depth, opening = true;
      if (c == '^' && opens && pattern[i - 1] == '[') opening = true;
      if (c == ']' && depth > 0 && !opens) --depth;
      out += c;
      continue;
    }
    const char next = pattern[++i];
    const auto escape = pattern.substr(i - 1, 2);
    if (next == 'w' || next == 'W') {
      put("word", next == 'W', escape);
    } else if (next == 'd' || next == 'D') {
      put("digit", next == 'D', escape);
    } else if ((next == 'b' || next == 'B') && depth == 0) {
      throw LoadError(fmt::format("{}: {} in its regex is not implemented", where, escape));
    } else if (next == 'p' || next == 'P') {
      const auto close = pattern.find('}', i);
      if (pattern.substr(i + 1, 1) != "{" || close == std::string_view::npos) {
        throw LoadError(fmt::format("{}: {} in its regex without a class in braces", where, escape));
      }
      auto name = pattern.substr(i + 2, close - i - 2);
      const bool inverted = name.starts_with('^');
      if (inverted) name.remove_prefix(1);
      put(name, (next == 'P') != inverted, pattern.substr(i - 1, close - i + 2));
      i = close;
    } else {
      out += escape;
    }
  }
  return out;
}

Regex::Regex(const std::string& pattern, const std::string& where) : pattern_(pattern), where_(where) {
  once();
  const auto source = with_own_classes(pattern, where);
  OnigRegex made = nullptr;
  OnigErrorInfo info;
  const int code = onig_new(&made, bytes(source.data()), bytes(source.data() + source.size()), ONIG_OPTION_NONE,
                            ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  if (code != ONIG_NORMAL) throw LoadError(fmt::format("{}: its regex is none: {}", where, message(code, &info)));
  compiled_ = std::shared_ptr<re_pattern_buffer>(made, onig_free);
}

Regex::Matches::Matches(const Regex& regex, std::string_view text)
    : regex_(regex),
      text_(text),
      region_(onig_region_new(), [](OnigRegion* r) { onig_region_free(r, 1); }),
      limits_(onig_new_match_param(), onig_free_match_param) {
  const auto limit = kRetries + 16 * text.size();
  onig_initialize_match_param(limits_.get());
  onig_set_retry_limit_in_match_of_match_param(limits_.get(), limit);
  onig_set_retry_limit_in_search_of_match_param(limits_.get(), limit);
}

bool Regex::Matches::next(size_t& begin, size_t& end) {
  const auto* const data = bytes(text_.data());
  const auto* const last = data + text_.size();
  while (from_ <= text_.size()) {
    const auto at = onig_search_with_param(regex_.compiled_.get(), data, last, data + from_, last, region_.get(),
                                           ONIG_OPTION_NONE, limits_.get());
    if (at == ONIG_MISMATCH) return false;
    if (at < 0) {
      const bool endless = at == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || at == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER ||
                           at == ONIGERR_MATCH_STACK_LIMIT_OVER;
      throw InputError(fmt::format("{}: its regex {} on {}", regex_.where_,
                                   endless ? "backtracks without end" : "fails (" + message(at) + ")",
                                   beginning(text_.substr(from_)) + "; give a shorter text, or mend the tokenizer"));
    }
    begin = static_cast<size_t>(region_->beg[0]), end = static_cast<size_t>(region_->end[0]);
    if (begin == end && end == last_end_) {  // nothing, right after the last match: from one character later
      from_ += from_ < text_.size() ? utf8_length(text_[from_]) : 1;
      continue;
    }
    from_ = last_end_ = end;
    return true;
  }
  return false;
}

}  // namespace lockstep
