// Text that remembers where it came from while a normalizer changes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

class TrackedText {
 public:
  /// `tracked`: remember; else origin() is not to be asked.
  TrackedText(std::string_view text, bool tracked) : text_(text) {
    if (!tracked) return;
    from_.reserve(text.size());
    for (uint32_t i = 0; i < text.size(); ++i) from_.emplace_back(i, i + 1);
    tracked_ = true;
  }

  /// The bytes [begin, end) by themselves.
  TrackedText part(size_t begin, size_t end) const {
    TrackedText text(std::string_view(text_).substr(begin, end - begin), false);
    text.tracked_ = tracked_;
    if (tracked_) text.from_.assign(from_.begin() + begin, from_.begin() + end);
    return text;
  }

  std::string_view view() const { return text_; }
  bool tracked() const { return tracked_; }
  /// The bytes of the original that the bytes [begin, end) came from. begin < end.
  std::pair<uint32_t, uint32_t> origin(size_t begin, size_t end) const {
    return {from_[begin].first, from_[end - 1].second};
  }

  /// A new text is put together piece by piece and then replaces this one.
  class Builder {
   public:
    explicit Builder(const TrackedText& source) : source_(source) { text_.reserve(source.text_.size()); }
    /// The source's bytes [begin, end) as they are.
    void keep(size_t begin, size_t end) {
      text_.append(source_.text_, begin, end - begin);
      if (source_.tracked_) from_.insert(from_.end(), source_.from_.begin() + begin, source_.from_.begin() + end);
    }
    /// `bytes` in place of the source's bytes [begin, end), of which there is at least one.
    void put(std::string_view bytes, size_t begin, size_t end) {
      text_.append(bytes);
      if (source_.tracked_) from_.insert(from_.end(), bytes.size(), source_.origin(begin, end));
    }
    size_t size() const { return text_.size(); }

   private:
    friend class TrackedText;
    const TrackedText& source_;
    std::string text_;
    std::vector<std::pair<uint32_t, uint32_t>> from_;
  };
  /// `bytes` for the whole of an untracked text.
  void replace(std::string bytes) { text_ = std::move(bytes); }
  void take(Builder&& built) { text_ = std::move(built.text_), from_ = std::move(built.from_); }

 private:
  std::string text_;
  bool tracked_ = false;
  std::vector<std::pair<uint32_t, uint32_t>> from_;  // of each byte
};

}  // namespace lockstep
