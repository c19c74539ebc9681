#include "text/sentencepiece_tokenizer.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "text/sentencepiece_model.h"
#include "text/utf8.h"

namespace lockstep {

namespace {

constexpr size_t kNormalizedLimit = size_t{1} << 30;  // the library counts bytes in int

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& path, std::string_view bytes, SentencePieceRules rules, size_t longest)
      : limit_(kNormalizedLimit / (3 * std::max<size_t>(longest, 1))) {
    std::string problem;
    try {
      const auto status = processor_.LoadFromSerializedProto(bytes);
      if (!status.ok()) problem = status.ToString();
    } catch (const std::exception& e) {
      problem = e.what();
    }
    if (!problem.empty()) throw LoadError(fmt::format("{}: the sentencepiece library refuses it: {}", path, problem));
    const auto find = [&](const char* what, int id) {
      if (id < 0) throw LoadError(fmt::format("{}: {} is to be added, but no control piece is it", path, what));
      return id;
    };
    if (rules.add_bos) bos_ = find("BOS", processor_.bos_id());
    if (rules.add_eos) eos_ = find("EOS", processor_.eos_id());
  }

  std::vector<int64_t> encode(std::string_view text, bool special) const override {
    std::vector<int> found;
    check(text, [&] { return processor_.Encode(text, &found); });
    std::vector<int64_t> ids;
    ids.reserve(found.size() + 2);
    if (special && bos_) ids.push_back(*bos_);
    ids.insert(ids.end(), found.begin(), found.end());
    if (special && eos_) ids.push_back(*eos_);
    return ids;
  }

  std::vector<Piece> pieces(std::string_view text, bool special) const override {
    sentencepiece::ImmutableSentencePieceText found;
    check(text, [&] { return processor_.Encode(text, found.mutable_proto()); });
    size_t byte = 0, point = 0;
    const auto point_of = [&](size_t to) {
      if (to < byte) byte = point = 0;
      point += count_code_points(text.substr(byte, to - byte));
      byte = to;
      return point;
    };
    std::vector<Piece> pieces;
    pieces.reserve(found.pieces_size() + 2);
    if (special && bos_) pieces.push_back({*bos_, name(*bos_), 0, 0});
    for (size_t i = 0; i < found.pieces_size(); ++i) {
      const auto piece = found.pieces(static_cast<int>(i));
      const auto begin = point_of(piece.begin());
      pieces.push_back({piece.id(), piece.piece(), begin, point_of(piece.end())});
    }
    const auto end = count_code_points(text);
    if (special && eos_) pieces.push_back({*eos_, name(*eos_), end, end});
    return pieces;
  }

  std::string decode(std::span<const int64_t> ids, bool skip_special) const override {
    std::vector<int> known;
    known.reserve(ids.size());
    for (const auto id : ids) {
      if (id < 0 || id >= size()) continue;
      const auto i = static_cast<int>(id);
      if (!skip_special || !(processor_.IsControl(i) || processor_.IsUnknown(i))) known.push_back(i);
    }
    std::string text;
    const auto status = processor_.Decode(known, &text);
    if (!status.ok()) throw InputError(fmt::format("{} ids cannot be decoded: {}", ids.size(), status.ToString()));
    return text;
  }

  std::optional<int64_t> id_of(std::string_view token) const override {
    if (token.empty()) return std::nullopt;
    const auto id = processor_.PieceToId(token);  // the unknown piece's where there is no such
    if (processor_.IdToPiece(id) != token) return std::nullopt;
    return id;
  }

  int64_t size() const override { return processor_.GetPieceSize(); }
  std::optional<int64_t> bos() const override { return bos_; }

 private:
  template <class F>
  void check(std::string_view text, F encode) const {
    if (text.size() > limit_) {
      throw InputError(fmt::format("a text of {} bytes, expected at most {} with this tokenizer", text.size(), limit_));
    }
    const auto status = encode();
    if (!status.ok()) {
      throw InputError(fmt::format("a text of {} bytes cannot be encoded: {}", text.size(), status.ToString()));
    }
  }
  std::string name(int64_t id) const { return processor_.IdToPiece(static_cast<int>(id)); }

  sentencepiece::SentencePieceProcessor processor_;
  size_t limit_;
  std::optional<int64_t> bos_, eos_;
};

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path, SentencePieceRules rules) {
  const auto bytes = read_text(path);
  if (bytes.empty()) throw LoadError(fmt::format("{}: the file is empty, expected a SentencePiece model", path));
  if (bytes.starts_with("version https://git-lfs")) {
    throw LoadError(
        fmt::format("{}: looks like a Git LFS pointer of {} bytes, expected a SentencePiece model; run git lfs pull",
                    path, bytes.size()));
  }
  const auto longest = check_sentencepiece(path, bytes);
  return std::make_unique<SentencePieceTokenizer>(path, bytes, rules, longest);
}

}  // namespace lockstep
