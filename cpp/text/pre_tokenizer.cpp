#include "text/pre_tokenizer.h"

#include <algorithm>
#include <map>

#include "text/pattern.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace lockstep {

namespace {

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct Part {
  Span span;
  bool match;
};

/// The spans that `parts`, which cover a text from left to right, become. mirrors NormalizedString.split
void join(const std::vector<Part>& parts, Behavior behavior, std::vector<Span>& out) {
  const auto first = static_cast<std::ptrdiff_t>(out.size());
  const auto any = [&] { return static_cast<std::ptrdiff_t>(out.size()) > first; };
  const auto put = [&](const Span& span) { out.push_back(span); };
  bool before = false;  // was the part before a match?
  switch (behavior) {
    case Behavior::isolated:
      for (const auto& p : parts) put(p.span);
      break;
    case Behavior::removed:
      for (const auto& p : parts) {
        if (!p.match) put(p.span);
      }
      break;
    case Behavior::contiguous:
      for (const auto& p : parts) {
        if (p.match == before && any()) {
          out.back().end = p.span.end;
        } else {
          put(p.span);
        }
        before = p.match;
      }
      break;
    case Behavior::merged_with_previous:
      for (const auto& p : parts) {
        if (p.match && !before && any()) {
          out.back().end = p.span.end;
        } else {
          put(p.span);
        }
        before = p.match;
      }
      break;
    case Behavior::merged_with_next:
      for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
        if (p->match && !before && any()) {
          out.back().begin = p->span.begin;
        } else {
          put(p->span);
        }
        before = p->match;
      }
      std::reverse(out.begin() + first, out.end());
  }
  out.erase(std::remove_if(out.begin() + first, out.end(), [](const Span& s) { return s.begin == s.end; }), out.end());
}

/// Cuts every span by what `find(view, found)` finds in it.
template <class Find>
void cut(const TrackedText& text, std::vector<Span>& spans, bool invert, Behavior behavior, Find&& find) {
  std::vector<Span> out;
  out.reserve(spans.size());
  std::vector<Part> parts;
  for (const auto& span : spans) {
    parts.clear();
    size_t done = span.begin;
    find(text.view().substr(span.begin, span.end - span.begin), [&](size_t begin, size_t end) {
      begin += span.begin, end += span.begin;
      if (done != begin) parts.push_back({{done, begin}, invert});
      parts.push_back({{begin, end}, !invert});
      done = end;
    });
    if (done != span.end) parts.push_back({{done, span.end}, invert});
    join(parts, behavior, out);
  }
  spans = std::move(out);
}

class Sequence final : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts_(std::move(parts)) {}
  void apply(TrackedText& text, std::vector<Span>& spans) const override {
    for (const auto& part : parts_) part->apply(text, spans);
  }
  bool byte_level() const override { return !parts_.empty() && parts_.back()->byte_level(); }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

class Split final : public PreTokenizer {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(TrackedText& text, std::vector<Span>& spans) const override {
    cut(text, spans, invert_, behavior_, [&](std::string_view view, auto&& found) { pattern_.each(view, found); });
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

class Digits final : public PreTokenizer {
 public:
  explicit Digits(bool individual) : individual_(individual) {}
  void apply(TrackedText& text, std::vector<Span>& spans) const override {
    const auto behavior = individual_ ? Behavior::isolated : Behavior::contiguous;
    cut(text, spans, false, behavior, [](std::string_view view, auto&& found) {
      for (size_t at = 0; at < view.size();) {
        const auto begin = at;
        if (is_numeric(next_code_point(view, at))) found(begin, at);
      }
    });
  }

 private:
  bool individual_;
};

/// The writing in the alphabet itself is left to the model, which reads bytes; see byte_level().
class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex) : add_prefix_space_(add_prefix_space) {
    // GPT-2's, which is part of this type.
    if (use_regex) {
      words_.emplace(R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", "ByteLevel");
    }
  }
  void apply(TrackedText& text, std::vector<Span>& spans) const override {
    if (add_prefix_space_) prefix(text, spans);
    if (!words_) return;
    cut(text, spans, false, Behavior::isolated, [&](std::string_view view, auto&& found) {
      Regex::Matches matches(*words_, view);
      for (size_t begin, end; matches.next(begin, end);) found(begin, end);
    });
  }
  bool byte_level() const override { return true; }

 private:
  static void prefix(TrackedText& text, std::vector<Span>& spans) {
    TrackedText::Builder built(text);
    for (auto& span : spans) {
      const auto begin = built.size();
      const char first = text.view()[span.begin];
      if (first != ' ') built.put(" ", span.begin, span.begin + utf8_length(first));
      built.keep(span.begin, span.end);
      span = {begin, built.size()};
    }
    text.take(std::move(built));
  }

  bool add_prefix_space_;
  std::optional<Regex> words_;
};

Behavior read_behavior(ConfigReader& reader) {
  static const std::map<std::string, Behavior> kNames = {{"Removed", Behavior::removed},
                                                         {"Isolated", Behavior::isolated},
                                                         {"MergedWithPrevious", Behavior::merged_with_previous},
                                                         {"MergedWithNext", Behavior::merged_with_next},
                                                         {"Contiguous", Behavior::contiguous}};
  const auto name = reader.require<std::string>("behavior");
  const auto it = kNames.find(name);
  if (it == kNames.end()) reader.fail("behavior", fmt::format("\"{}\" is not known", name));
  return it->second;
}

std::unique_ptr<PreTokenizer> read(ConfigReader& reader) {
  const auto type = reader.require<std::string>("type");
  std::unique_ptr<PreTokenizer> made;
  if (type == "Sequence") {
    std::vector<std::unique_ptr<PreTokenizer>> parts;
    for (auto& part : reader.children("pretokenizers")) {
      if (!parts.empty() && parts.back()->byte_level()) part.fail("type", "nothing after ByteLevel is implemented");
      parts.push_back(read(part));
    }
    made = std::make_unique<Sequence>(std::move(parts));
  } else if (type == "Split") {
    Pattern pattern(reader, "pattern");
    const auto behavior = read_behavior(reader);
    made = std::make_unique<Split>(std::move(pattern), behavior, reader.require<bool>("invert"));
  } else if (type == "Digits") {
    made = std::make_unique<Digits>(reader.require<bool>("individual_digits"));
  } else if (type == "ByteLevel") {
    reader.find<bool>("trim_offsets");  // of the post-processor alone
    const bool prefix = reader.require<bool>("add_prefix_space");
    made = std::make_unique<ByteLevel>(prefix, reader.find<bool>("use_regex").value_or(true));
  } else {
    reader.fail("type",
                fmt::format("\"{}\" is not implemented (implemented: Sequence, Split, Digits, ByteLevel)", type));
  }
  reader.finish();
  return made;
}

}  // namespace

std::unique_ptr<PreTokenizer> read_pre_tokenizer(ConfigReader& file, const std::string& key) {
  auto reader = file.find_child(key);
  return reader ? read(*reader) : nullptr;
}

}  // namespace lockstep
