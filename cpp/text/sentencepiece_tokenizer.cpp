#include "text/sentencepiece_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <queue>
#include <unordered_map>

#include "core/error.h"
#include "text/sentencepiece_model.h"
#include "text/utf8.h"

namespace lockstep {

namespace {

using Model = SentencePieceModel;

constexpr size_t kNormalizedLimit = size_t{1} << 30;  // bytes are counted in 32 bits
constexpr float kUnknownPenalty = 10, kLowestSum = -100'000;
constexpr std::string_view kSpace = "\u2581", kReplacement = "\ufffd";

bool continues(char byte) { return (byte & 0xc0) == 0x80; }

/// Bytes of the character at the beginning of `text`, which is not empty.
size_t character(std::string_view text) { return std::min(utf8_length(text[0]), text.size()); }

/// A set of pieces, to find those that a text begins with.
class Prefixes {
 public:
  template <class F>
  Prefixes(const Model& model, F wanted) : pieces_(&model.pieces) {
    for (size_t id = 0; id < pieces_->size(); ++id) {
      if (wanted((*pieces_)[id])) ids_.push_back(static_cast<int32_t>(id));
    }
    std::sort(ids_.begin(), ids_.end(), [&](int32_t a, int32_t b) { return text(a) < text(b); });
    for (const auto id : ids_) ++first_[static_cast<unsigned char>(text(id)[0]) + 1];
    for (size_t c = 0; c < 256; ++c) first_[c + 1] += first_[c];
  }

  /// found(id, length), the shortest first.
  template <class F>
  void each(std::string_view text, F found) const {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    if (text.empty()) return;
    // [low, high): those that begin with the first `length` bytes. The one that is no longer comes first.
    auto low = first_[byte(0)], high = first_[byte(0) + 1];
    for (size_t length = 1; low < high; ++length) {
      if (this->text(ids_[low]).size() == length) found(ids_[low++], length);
      if (low == high || length == text.size()) return;
      const auto wanted = byte(length);
      const auto at = [&](int32_t id) { return static_cast<unsigned char>(this->text(id)[length]); };
      const auto begin = ids_.begin() + low, end = ids_.begin() + high;
      const auto from = std::partition_point(begin, end, [&](int32_t id) { return at(id) < wanted; });
      high = static_cast<uint32_t>(std::partition_point(from, end, [&](int32_t id) { return at(id) == wanted; }) -
                                   ids_.begin());
      low = static_cast<uint32_t>(from - ids_.begin());
    }
  }

  /// The length of the longest, or 0.
  size_t longest(std::string_view text) const {
    size_t longest = 0;
    each(text, [&](int32_t, size_t length) { longest = length; });
    return longest;
  }

 private:
  std::string_view text(int32_t id) const { return (*pieces_)[static_cast<size_t>(id)].text; }

  const std::vector<Model::Entry>* pieces_;
  std::vector<int32_t> ids_;           // by text
  std::array<uint32_t, 257> first_{};  // where those that begin with a byte begin
};

struct Normalized {
  std::string text;
  std::vector<uint32_t> origin;  // of each byte, and of the end: where it was in the text that was given
};

/// `verbatim`: pieces that are left as they are, or nullptr. suffix: the space that is added goes to the end.
Normalized normalize(std::string_view text, const Model::Normalization& spec, const Prefixes* verbatim, bool suffix) {
  Normalized out;
  const auto space = spec.escape_whitespaces ? kSpace : std::string_view(" ");
  size_t at = 0, origin = 0;
  const auto put = [&](std::string_view bytes) {
    out.text += bytes;
    out.origin.insert(out.origin.end(), bytes.size(), static_cast<uint32_t>(origin));
  };
  // What stands for the beginning of the rest, and how much of it.
  const auto next = [&]() -> std::pair<std::string_view, size_t> {
    const auto rest = text.substr(at);
    if (const auto length = verbatim ? verbatim->longest(rest) : 0) return {rest.substr(0, length), length};
    if (spec.charsmap) {
      if (const auto match = spec.charsmap->match(rest); match.second) return match;
    }
    if (continues(rest[0])) return {kReplacement, 1};  // a key ended inside a character
    return {rest.substr(0, character(rest)), character(rest)};
  };

  bool after_space = spec.remove_extra_whitespaces;
  while (after_space && at < text.size()) {
    const auto [found, length] = next();
    if (found != " ") break;
    at += length;
  }
  if (at == text.size()) return out;
  out.text.reserve(text.size() + text.size() / 2);
  out.origin.reserve(text.size() + text.size() / 2);
  origin = at;
  if (spec.add_dummy_prefix && !suffix) put(space);
  while (at < text.size()) {
    auto [found, length] = next();
    while (after_space && found.starts_with(' ')) found.remove_prefix(1);
    for (size_t i = 0; i < found.size(); ++i) put(found[i] == ' ' ? space : found.substr(i, 1));
    if (!found.empty()) after_space = spec.remove_extra_whitespaces && found.ends_with(' ');
    at += length, origin = at;
  }
  while (spec.remove_extra_whitespaces && out.text.ends_with(space)) {
    out.text.resize(out.text.size() - space.size());
    origin = out.origin[out.text.size()];
    out.origin.resize(out.text.size());
  }
  if (spec.add_dummy_prefix && suffix) put(space);
  out.origin.push_back(static_cast<uint32_t>(origin));
  return out;
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& path, SentencePieceRules rules)
      : model_(Model::open(path)),
        user_defined_(*model_, [](const Model::Entry& piece) { return piece.type == Model::kUserDefined; }),
        in_text_(*model_, [&](const Model::Entry& p) { return model_->type == Model::kUnigram && p.in_text(); }) {
    const auto& pieces = model_->pieces;
    ids_.reserve(pieces.size());
    size_t longest = 1;
    if (model_->normalization.charsmap) longest = model_->normalization.charsmap->longest_replacement();
    limit_ = kNormalizedLimit / (kSpace.size() * std::max<size_t>(longest, 1));
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      ids_.emplace(pieces[i].text, id);
      if (pieces[i].type == Model::kByte) bytes_[sentencepiece_byte(pieces[i].text)] = id;
      if (pieces[i].type == Model::kNormal) lowest_ = std::min(lowest_, pieces[i].score);
      if (pieces[i].in_text()) longest_ = std::max(longest_, pieces[i].text.size());
    }
    const auto added = [&](const char* what, std::string_view name) -> int64_t {
      const auto found = ids_.find(name);
      if (found == ids_.end() || piece(found->second).type != Model::kControl) {
        throw LoadError(
            fmt::format("{}: {} is to be added, but \"{}\" is no piece of type CONTROL", path, what, valid_utf8(name)));
      }
      return found->second;
    };
    if (rules.add_bos) bos_ = added("BOS", model_->bos);
    if (rules.add_eos) eos_ = added("EOS", model_->eos);
  }

  std::vector<int64_t> encode(std::string_view text, bool special) const override {
    const auto normalized = normalize(text);
    std::vector<int64_t> ids;
    if (special && bos_) ids.push_back(*bos_);
    for (const auto& part : segment(normalized.text)) {
      if (part.id != model_->unknown || !model_->byte_fallback) {
        ids.push_back(part.id);
      } else {
        for (auto i = part.begin; i < part.end; ++i) ids.push_back(byte_id(normalized.text[i]));
      }
    }
    if (special && eos_) ids.push_back(*eos_);
    return ids;
  }

  std::vector<Piece> pieces(std::string_view text, bool special) const override {
    const auto normalized = normalize(text);
    std::vector<Piece> pieces;
    size_t byte = 0, point = 0;
    const auto point_at = [&](uint32_t normalized_byte) {
      const auto to = normalized.origin[normalized_byte];  // never less than the last
      point += count_code_points(text.substr(byte, to - byte));
      byte = to;
      return point;
    };
    if (special && bos_) pieces.push_back({*bos_, name(*bos_), 0, 0});
    for (const auto& part : segment(normalized.text)) {
      const auto begin = point_at(part.begin), end = point_at(part.end);
      if (part.id != model_->unknown || !model_->byte_fallback) {
        pieces.push_back({part.id, normalized.text.substr(part.begin, part.end - part.begin), begin, end});
        continue;
      }
      for (auto i = part.begin; i < part.end; ++i) {  // the last byte stands for the character
        const auto id = byte_id(normalized.text[i]);
        pieces.push_back({id, name(id), begin, i + 1 == part.end ? end : begin});
      }
    }
    const auto end = count_code_points(text);
    if (special && eos_) pieces.push_back({*eos_, name(*eos_), end, end});
    return pieces;
  }

  std::string decode(std::span<const int64_t> ids, bool skip_special) const override {
    const bool drops_space = model_->normalization.add_dummy_prefix || model_->normalization.remove_extra_whitespaces;
    std::string text, bytes;
    bool dropped = false, at_beginning = true;
    for (const auto id : ids) {
      if (id < 0 || id >= size()) continue;
      const auto& [piece_text, score, type] = piece(id);
      if (skip_special && (type == Model::kControl || type == Model::kUnknown)) continue;
      if (type == Model::kByte) {
        bytes.push_back(static_cast<char>(sentencepiece_byte(piece_text)));
        continue;
      }
      put_bytes(text, bytes);
      if (dropped || !text.empty()) at_beginning = false;
      dropped = false;
      if (type == Model::kUnknown) text += model_->unk_surface;
      if (type == Model::kUnknown || type == Model::kControl) continue;
      auto rest = piece_text;
      if (at_beginning && drops_space && rest.starts_with(kSpace)) {
        rest.remove_prefix(kSpace.size());
        dropped = !model_->normalization.remove_extra_whitespaces;  // which drops all of them
      }
      for (size_t space; (space = rest.find(kSpace)) != rest.npos; rest.remove_prefix(space + kSpace.size())) {
        text.append(rest.substr(0, space)).push_back(' ');
      }
      text += rest;
    }
    put_bytes(text, bytes);
    if (model_->denormalization) return lockstep::normalize(text, *model_->denormalization, nullptr, false).text;
    return text;
  }

  std::optional<int64_t> id_of(std::string_view token) const override {
    const auto found = ids_.find(token);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }

  int64_t size() const override { return static_cast<int64_t>(model_->pieces.size()); }
  std::optional<int64_t> bos() const override { return bos_; }

 private:
  /// A piece of the normalized text, [begin, end).
  struct Part {
    int32_t id;
    uint32_t begin, end;
  };

  const Model::Entry& piece(int64_t id) const { return model_->pieces[static_cast<size_t>(id)]; }
  std::string name(int64_t id) const { return std::string(piece(id).text); }
  int32_t byte_id(char byte) const { return bytes_[static_cast<unsigned char>(byte)]; }

  /// The text of a run of bytes; each byte that begins no character is U+FFFD. The run is then empty.
  static void put_bytes(std::string& text, std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const auto one = bytes.substr(at, utf8_length(bytes[at]));
      const bool valid = valid_utf8(one) == one;
      text += valid ? one : kReplacement;
      at += valid ? one.size() : 1;
    }
    bytes.clear();
  }

  /// What text can be; the unknown piece if it is none.
  int32_t find(std::string_view text) const {
    if (text.size() > longest_) return model_->unknown;
    const auto found = ids_.find(text);
    return found != ids_.end() && piece(found->second).in_text() ? found->second : model_->unknown;
  }

  Normalized normalize(std::string_view text) const {
    if (text.size() > limit_) {
      throw InputError(fmt::format("a text of {} bytes, expected at most {} for this tokenizer", text.size(), limit_));
    }
    return lockstep::normalize(text, model_->normalization, &user_defined_, model_->treat_whitespace_as_suffix);
  }

  std::vector<Part> segment(std::string_view text) const {
    auto parts = model_->type == Model::kBpe ? bpe(text) : unigram(text);
    if (model_->byte_fallback) return parts;
    // What is unknown is one piece as far as it goes.
    size_t kept = 0;
    for (const auto& part : parts) {
      if (kept > 0 && part.id == model_->unknown && parts[kept - 1].id == model_->unknown) {
        parts[kept - 1].end = part.end;
      } else {
        parts[kept++] = part;
      }
    }
    parts.resize(kept);
    return parts;
  }

  std::vector<Part> bpe(std::string_view text) const;
  std::vector<Part> unigram(std::string_view text) const;

  std::unique_ptr<const Model> model_;
  Prefixes user_defined_, in_text_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::array<int32_t, 256> bytes_{};
  size_t limit_ = 0, longest_ = 0;
  float lowest_ = std::numeric_limits<float>::max();
  std::optional<int64_t> bos_, eos_;
};

/// Characters, of which the pair that makes the best piece is joined, the left one among equals, until none is left.
/// User-defined pieces are not joined with others. Unused pieces may be joined further, and fall apart in the end.
std::vector<SentencePieceTokenizer::Part> SentencePieceTokenizer::bpe(std::string_view text) const {
  struct Symbol {
    uint32_t begin, size;  // size 0: joined to one on its left
    int32_t previous, next;
    bool fixed;
  };
  struct Join {
    float score;
    int32_t left, right;
    uint32_t size;
    bool operator<(const Join& other) const {
      return score < other.score || (score == other.score && left > other.left);
    }
  };
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < text.size();) {
    const auto rest = text.substr(at);
    const auto fixed = user_defined_.longest(rest);
    const auto size = fixed ? fixed : character(rest);
    const auto i = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(size), i - 1, i + 1, fixed > 0});
    at += size;
  }
  if (symbols.empty()) return {};
  symbols.back().next = -1;

  const auto of = [&](const Symbol& symbol) { return text.substr(symbol.begin, symbol.size); };
  std::priority_queue<Join> joins;
  std::unordered_map<std::string_view, uint32_t> halves;  // of unused pieces: the left one's size, as last seen
  const auto consider = [&](int32_t l, int32_t r) {
    if (l < 0 || r < 0) return;
    const auto &left = symbols[l], &right = symbols[r];
    if (left.fixed || right.fixed) return;
    const auto joined = text.substr(left.begin, left.size + right.size);
    const auto id = find(joined);
    if (id == model_->unknown) return;
    joins.push({piece(id).score, l, r, left.size + right.size});
    if (piece(id).type == Model::kUnused) halves[joined] = left.size;
  };
  for (size_t i = 1; i < symbols.size(); ++i) consider(static_cast<int32_t>(i) - 1, static_cast<int32_t>(i));
  while (!joins.empty()) {
    const auto join = joins.top();
    joins.pop();
    auto &left = symbols[join.left], &right = symbols[join.right];
    if (left.size == 0 || right.size == 0 || left.size + right.size != join.size) continue;  // no longer there
    left.size = join.size, right.size = 0;
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].previous = join.left;
    consider(left.previous, join.left);
    consider(join.left, left.next);
  }

  std::vector<Part> parts;
  std::vector<std::string_view> pending;
  for (int32_t i = 0; i >= 0; i = symbols[i].next) {
    pending.push_back(of(symbols[i]));
    while (!pending.empty()) {
      const auto part = pending.back();
      pending.pop_back();
      auto id = find(part);
      if (id != model_->unknown && piece(id).type == Model::kUnused) {
        if (const auto half = halves.find(part); half != halves.end()) {
          pending.push_back(part.substr(half->second));
          pending.push_back(part.substr(0, half->second));
          continue;
        }
        id = model_->unknown;
      }
      const auto begin = static_cast<uint32_t>(part.data() - text.data());
      parts.push_back({id, begin, begin + static_cast<uint32_t>(part.size())});
    }
  }
  return parts;
}

/// The pieces with the highest sum of scores; of equals the one found first. The sums are floats, whose rounding
/// decides between orders of the same pieces, and start again from 0 below kLowestSum: both as in the package.
std::vector<SentencePieceTokenizer::Part> SentencePieceTokenizer::unigram(std::string_view text) const {
  struct Best {
    float score = 0;
    int32_t id = -1;  // of the piece that ends here
    uint32_t begin = 0;
  };
  std::vector<Best> best(text.size() + 1);
  for (size_t at = 0, length; at < text.size(); at += length) {
    if (const auto sum = best[at].score; sum < kLowestSum) {
      const auto reach = std::min(text.size(), at + std::max<size_t>(longest_, 4));
      for (size_t end = at; end <= reach; ++end) best[end].score -= best[end].id < 0 ? 0 : sum;
    }
    const auto offer = [&](int32_t id, size_t size, float score) {
      auto& end = best[at + size];
      score += best[at].score;
      if (end.id < 0 || score > end.score) end = {score, id, static_cast<uint32_t>(at)};
    };
    length = character(text.substr(at));
    bool whole = false;  // is the character a piece?
    in_text_.each(text.substr(at), [&](int32_t id, size_t size) {
      const auto& [name, score, type] = piece(id);
      if (type == Model::kUnused) return;
      whole |= size == length;
      offer(id, size, type == Model::kUserDefined ? 0.1f * static_cast<float>(size - 1) : score);
    });
    if (!whole) offer(model_->unknown, length, lowest_ - kUnknownPenalty);
  }
  std::vector<Part> parts;
  for (auto end = static_cast<uint32_t>(text.size()); end > 0; end = best[end].begin) {
    parts.push_back({best[end].id, best[end].begin, end});
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path, SentencePieceRules rules) {
  return std::make_unique<SentencePieceTokenizer>(path, rules);
}

}  // namespace lockstep
