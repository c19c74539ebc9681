#include "text/normalizer.h"

#include <vector>

#include "text/pattern.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace lockstep {

namespace {

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  void apply(TrackedText& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

class Nfc final : public Normalizer {
 public:
  void apply(TrackedText& text) const override {
    const auto view = text.view();
    if (!text.tracked()) return text.replace(nfc(view));
    TrackedText::Builder built(text);
    for (size_t from = 0; from < view.size();) {
      const auto end = nfc_segment(view, from);
      const auto segment = view.substr(from, end - from);
      const auto composed = nfc(segment);
      composed == segment ? built.keep(from, end) : built.put(composed, from, end);
      from = end;
    }
    text.take(std::move(built));
  }
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content, std::string where)
      : pattern_(std::move(pattern)), content_(std::move(content)), where_(std::move(where)) {}
  void apply(TrackedText& text) const override {
    TrackedText::Builder built(text);
    size_t done = 0;
    pattern_.each(text.view(), [&](size_t begin, size_t end) {
      if (begin == end) throw InputError(where_ + ": its regex matches an empty text, which is not implemented");
      built.keep(done, begin);
      built.put(content_, begin, end);
      done = end;
    });
    built.keep(done, text.view().size());
    text.take(std::move(built));
  }

 private:
  Pattern pattern_;
  std::string content_, where_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(TrackedText& text) const override {
    if (text.view().empty()) return;
    TrackedText::Builder built(text);
    built.put(prefix_, 0, utf8_length(text.view()[0]));
    built.keep(0, text.view().size());
    text.take(std::move(built));
  }

 private:
  std::string prefix_;
};

std::unique_ptr<Normalizer> read(ConfigReader& reader) {
  const auto type = reader.require<std::string>("type");
  std::unique_ptr<Normalizer> made;
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> parts;
    for (auto& part : reader.children("normalizers")) parts.push_back(read(part));
    made = std::make_unique<Sequence>(std::move(parts));
  } else if (type == "NFC") {
    made = std::make_unique<Nfc>();
  } else if (type == "Replace") {
    Pattern pattern(reader, "pattern");
    made = std::make_unique<Replace>(std::move(pattern), reader.require<std::string>("content"), reader.at("pattern"));
  } else if (type == "Prepend") {
    made = std::make_unique<Prepend>(reader.require<std::string>("prepend"));
  } else {
    reader.fail("type", fmt::format("\"{}\" is not implemented (implemented: Sequence, NFC, Replace, Prepend)", type));
  }
  reader.finish();
  return made;
}

}  // namespace

std::unique_ptr<Normalizer> read_normalizer(ConfigReader& file, const std::string& key) {
  auto reader = file.find_child(key);
  return reader ? read(*reader) : nullptr;
}

}  // namespace lockstep
