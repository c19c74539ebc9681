#include "text/decoder.h"

#include <charconv>

#include "text/byte_level.h"
#include "text/pattern.h"
#include "text/utf8.h"

namespace lockstep {

namespace {

using Parts = std::vector<std::string>;

class Sequence final : public Decoder {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Decoder>> parts) : parts_(std::move(parts)) {}
  Parts apply(Parts tokens) const override {
    for (const auto& part : parts_) tokens = part->apply(std::move(tokens));
    return tokens;
  }

 private:
  std::vector<std::unique_ptr<Decoder>> parts_;
};

/// All bytes at once; a token with a character outside of the alphabet stands for itself.
class ByteLevel final : public Decoder {
 public:
  Parts apply(Parts tokens) const override {
    std::string bytes;
    for (const auto& token : tokens) bytes += bytes_of_level(token).value_or(token);
    return {valid_utf8(bytes)};
  }
};

/// Runs of <0x..> become their text, or a U+FFFD for each where they are none.
class ByteFallback final : public Decoder {
 public:
  Parts apply(Parts tokens) const override {
    Parts out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      const bool valid = valid_utf8(bytes) == bytes;
      valid ? out.push_back(bytes) : out.resize(out.size() + bytes.size(), "\xef\xbf\xbd");
      bytes.clear();
    };
    for (auto& token : tokens) {
      if (const auto byte = byte_of(token)) {
        bytes.push_back(static_cast<char>(*byte));
        continue;
      }
      flush();
      out.push_back(std::move(token));
    }
    flush();
    return out;
  }

 private:
  static std::optional<uint8_t> byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
    uint8_t byte = 0;
    const auto* const end = token.data() + 5;
    const auto* const begin = token.data() + (token[3] == '+' ? 4 : 3);  // as Rust reads numbers
    const auto [stop, error] = std::from_chars(begin, end, byte, 16);
    return error == std::errc() && stop == end ? std::optional(byte) : std::nullopt;
  }
};

class Fuse final : public Decoder {
 public:
  Parts apply(Parts tokens) const override {
    std::string text;
    for (const auto& token : tokens) text += token;
    return {text};
  }
};

class Replace final : public Decoder {
 public:
  Replace(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  Parts apply(Parts tokens) const override {
    for (auto& token : tokens) {
      std::string replaced;
      size_t done = 0;
      pattern_.each(token, [&](size_t begin, size_t end) {
        replaced.append(token, done, begin - done).append(content_);
        done = end;
      });
      token = replaced.append(token, done);
    }
    return tokens;
  }

 private:
  Pattern pattern_;
  std::string content_;
};

/// Takes a character off the ends of each token, up to so many times.
class Strip final : public Decoder {
 public:
  Strip(std::string content, int64_t start, int64_t stop) : content_(std::move(content)), start_(start), stop_(stop) {}
  Parts apply(Parts tokens) const override {
    for (auto& token : tokens) {
      for (int64_t i = 0; i < start_ && token.starts_with(content_); ++i) token.erase(0, content_.size());
      for (int64_t i = 0; i < stop_ && token.ends_with(content_); ++i) token.erase(token.size() - content_.size());
    }
    return tokens;
  }

 private:
  std::string content_;
  int64_t start_, stop_;
};

std::unique_ptr<Decoder> read(ConfigReader& reader) {
  const auto type = reader.require<std::string>("type");
  std::unique_ptr<Decoder> made;
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Decoder>> parts;
    for (auto& part : reader.children("decoders")) parts.push_back(read(part));
    made = std::make_unique<Sequence>(std::move(parts));
  } else if (type == "ByteLevel") {
    reader.ignore({"add_prefix_space", "trim_offsets", "use_regex"});  // of the other uses of this type
    made = std::make_unique<ByteLevel>();
  } else if (type == "ByteFallback") {
    made = std::make_unique<ByteFallback>();
  } else if (type == "Fuse") {
    made = std::make_unique<Fuse>();
  } else if (type == "Replace") {
    Pattern pattern(reader, "pattern");
    made = std::make_unique<Replace>(std::move(pattern), reader.require<std::string>("content"));
  } else if (type == "Strip") {
    const auto content = reader.require<std::string>("content");
    if (count_code_points(content) != 1) reader.fail("content", "expected one character");
    const auto start = reader.require_size("start", 0);
    made = std::make_unique<Strip>(content, start, reader.require_size("stop", 0));
  } else {
    reader.fail("type", fmt::format("\"{}\" is not implemented (implemented: Sequence, ByteLevel, ByteFallback, Fuse, "
                                    "Replace, Strip)",
                                    type));
  }
  reader.finish();
  return made;
}

}  // namespace

std::unique_ptr<Decoder> read_decoder(ConfigReader& file, const std::string& key) {
  auto reader = file.find_child(key);
  return reader ? read(*reader) : nullptr;
}

}  // namespace lockstep
