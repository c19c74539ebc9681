#include "text/stream.h"

#include <span>

namespace lockstep {

namespace {

constexpr std::string_view kUnfinished = "\xef\xbf\xbd";  // what a decoder shows for bytes that are no whole character

}  // namespace

std::string TextStream::add(int64_t id) {
  ids_.push_back(id);
  auto text = piece();
  if (text.empty() || text.ends_with(kUnfinished)) return "";
  start_ = shown_, shown_ = ids_.size();
  return text;
}

std::string TextStream::finish() {
  auto text = piece();
  start_ = shown_ = ids_.size();
  return text;
}

/// What the new ids add, in the company of a few before them: a space may depend on the neighbour.
std::string TextStream::piece() const {
  const auto ids = std::span(ids_).subspan(start_);
  const auto before = tokenizer_.decode(ids.first(shown_ - start_), /*skip_special=*/true);
  const auto whole = tokenizer_.decode(ids, /*skip_special=*/true);
  return whole.size() > before.size() ? whole.substr(before.size()) : "";
}

}  // namespace lockstep
