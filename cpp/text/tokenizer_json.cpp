#include "text/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/json.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace lockstep {

namespace {

constexpr size_t kLargest = size_t{256} << 20;
constexpr char32_t kSpace = 0x120;  // as the byte-level alphabet writes it

/// Reads every component in the order in which a text meets it.
class JsonTokenizer final : public Tokenizer {
 public:
  explicit JsonTokenizer(ConfigReader file)
      : normalizer_(read_normalizer(file, "normalizer")),
        pre_tokenizer_(read_pre_tokenizer(file, "pre_tokenizer")),
        model_(file, "model", byte_level()),
        added_(file, "added_tokens", model_, normalizer_.get()),
        post_(read_post_processor(file, "post_processor")),
        decoder_(read_decoder(file, "decoder")) {
    file.ignore({"version"});
    file.expect("truncation", nullptr);
    file.expect("padding", nullptr);
    file.finish();
    for (const auto* side : {&post_.before, &post_.after}) {
      for (const auto& piece : *side) {
        if (id_of(piece.text) != piece.id) {
          file.fail("post_processor", fmt::format("{} has id {}, which the vocabulary does not give it",
                                                  nlohmann::json(piece.text).dump(), piece.id));
        }
      }
    }
  }

  std::vector<int64_t> encode(std::string_view text, bool special) const override {
    std::vector<int64_t> ids;
    if (special) put(post_.before, ids);
    run(text, /*tracked=*/false, [&](const TrackedText&, size_t, size_t, int32_t id) { ids.push_back(id); });
    if (special) put(post_.after, ids);
    return ids;
  }

  std::vector<Piece> pieces(std::string_view text, bool special) const override {
    std::vector<Piece> pieces;
    if (special) pieces = post_.before;
    const auto first = pieces.size();
    run(text, /*tracked=*/true, [&](const TrackedText& from, size_t begin, size_t end, int32_t id) {
      const auto [b, e] = from.origin(begin, end);
      pieces.push_back({id, *token(id), b, e});
    });
    to_code_points(text, pieces, first);
    if (post_.trims) trim(pieces, first);
    if (special) pieces.insert(pieces.end(), post_.after.begin(), post_.after.end());
    return pieces;
  }

  std::string decode(std::span<const int64_t> ids, bool skip_special) const override {
    std::vector<std::string> tokens;
    for (const auto id : ids) {
      const auto* const text = token(id);
      if (text && !(skip_special && added_.is_special(id))) tokens.push_back(*text);
    }
    if (decoder_) {
      std::string text;
      for (const auto& part : decoder_->apply(std::move(tokens))) text += part;
      return text;
    }
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) text.append(i ? " " : "").append(tokens[i]);
    return text;
  }

  std::optional<int64_t> id_of(std::string_view token) const override {
    const auto added = added_.id_of(token);
    return added ? added : model_.id_of(token);
  }

  int64_t size() const override { return std::max(model_.size(), added_.end()); }

  std::optional<int64_t> bos() const override {
    return post_.before.empty() ? std::nullopt : std::optional(post_.before.front().id);
  }

 private:
  bool byte_level() const { return pre_tokenizer_ && pre_tokenizer_->byte_level(); }

  const std::string* token(int64_t id) const {
    const auto* const added = added_.token(id);
    return added ? added : model_.token(id);
  }

  static void put(const std::vector<Piece>& pieces, std::vector<int64_t>& ids) {
    for (const auto& piece : pieces) ids.push_back(piece.id);
  }

  /// Calls `out(text, begin, end, id)` for every token of `given`: the bytes [begin, end) of `text`.
  template <class Out>
  void run(std::string_view given, bool tracked, Out&& out) const {
    Bpe::Encoder encoder(model_);
    std::vector<Span> spans;
    std::vector<Symbol> symbols;
    const TrackedText whole(given, tracked);
    const auto words = [&](TrackedText& text, size_t begin, size_t end) {
      spans.assign(1, {begin, end});
      if (pre_tokenizer_) pre_tokenizer_->apply(text, spans);
      for (const auto& span : spans) {
        symbols.clear();
        encoder.encode(text.view().substr(span.begin, span.end - span.begin), symbols);
        size_t at = span.begin;
        for (const auto& symbol : symbols) {
          out(text, at, at + symbol.bytes, symbol.id);
          at += symbol.bytes;
        }
      }
    };
    for (const auto& part : added_.cut(given, false)) {
      if (part.id) {
        out(whole, part.begin, part.end, *part.id);
        continue;
      }
      auto text = whole.part(part.begin, part.end);
      if (normalizer_) normalizer_->apply(text);
      if (text.view().empty()) continue;
      if (!added_.any_normalized()) {
        words(text, 0, text.view().size());
        continue;
      }
      for (const auto& inner : added_.cut(text.view(), true)) {
        if (inner.id) {
          out(text, inner.begin, inner.end, *inner.id);
        } else {
          auto between = text.part(inner.begin, inner.end);
          words(between, 0, between.view().size());
        }
      }
    }
  }

  /// Bytes to code points, over pieces whose ranges never go back by more than they overlap.
  static void to_code_points(std::string_view text, std::vector<Piece>& pieces, size_t first) {
    std::vector<uint32_t> count(text.size() + 1);  // code points that begin before a byte
    for (size_t i = 0; i < text.size(); ++i) {
      count[i + 1] = count[i] + ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80);
    }
    for (size_t i = first; i < pieces.size(); ++i) {
      auto& p = pieces[i];
      // A part of a character's bytes is the whole character's.
      p.begin = count[p.begin + 1] - 1;
      p.end = count[p.end];
    }
  }

  /// Leaves the spaces at a piece's ends out of its range. mirrors processors ByteLevel process_offsets
  void trim(std::vector<Piece>& pieces, size_t first) const {
    for (size_t i = first; i < pieces.size(); ++i) {
      auto& p = pieces[i];
      const std::string_view text = p.text;
      const auto is_space = [](char32_t c) { return c == kSpace || is_rust_white_space(c); };
      size_t leading = 0, trailing = 0, at = 0;
      while (at < text.size() && is_space(next_code_point(text, at))) ++leading;
      for (size_t end = text.size(); end > 0 && is_space(code_point_before(text, end));) {
        ++trailing;
        do --end;
        while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80);
      }
      if (leading && i == 0 && p.begin == 0 && post_.keeps_prefix) leading = leading - 1;
      p.begin = std::min(p.begin + leading, p.end);
      if (trailing && p.end >= trailing) p.end = std::max(p.end - trailing, p.begin);
    }
  }

  std::unique_ptr<Normalizer> normalizer_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  Bpe model_;
  AddedTokens added_;
  PostProcessor post_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer_json(const std::string& path) {
  const auto json = parse_json(read_text(path, kLargest), path);
  return std::make_unique<JsonTokenizer>(ConfigReader(json, std::filesystem::path(path).filename().string()));
}

}  // namespace lockstep
