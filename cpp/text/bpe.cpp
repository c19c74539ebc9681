#include "text/bpe.h"

#include <algorithm>
#include <queue>

#include "text/byte_level.h"
#include "text/utf8.h"

namespace lockstep {

namespace {

constexpr size_t kRemembered = 1 << 16;  // words
constexpr size_t kLongest = 128;         // bytes of a word that is worth remembering
constexpr size_t kMostTokens = 1 << 24;

/// A text of the file, so that it can be shown in one line.
std::string in_quotes(std::string_view text) {
  return nlohmann::json(std::string(text.substr(0, 60))).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void Bpe::Merges::reserve(size_t count) {
  int bits = 4;
  while ((size_t{1} << bits) < 2 * count) ++bits;
  slots_.assign(size_t{1} << bits, {~uint64_t{0}, {}});
  shift_ = 64 - bits;
}

void Bpe::Merges::put(int32_t left, int32_t right, Merge merge) {
  const auto key = uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  auto at = home(key);
  while (slots_[at].key != ~uint64_t{0} && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {key, merge};
}

const Bpe::Merge* Bpe::Merges::find(int32_t left, int32_t right) const {
  const auto key = uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  for (auto at = home(key);; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].key == key) return &slots_[at].merge;
    if (slots_[at].key == ~uint64_t{0}) return nullptr;
  }
}

Bpe::Bpe(ConfigReader& file, const std::string& key, bool byte_level) : byte_level_(byte_level) {
  auto model = file.child(key);
  // Files of before 2022 leave the type out where the rest tells it.
  if (const auto type = model.find<std::string>("type"); type && *type != "BPE") {
    model.fail("type", fmt::format("\"{}\" is not implemented (implemented: BPE)", *type));
  }
  model.expect("dropout", 0.0);
  model.expect("continuing_subword_prefix", "");
  model.expect("end_of_word_suffix", "");
  ignore_merges_ = model.find<bool>("ignore_merges").value_or(false);
  byte_fallback_ = model.find<bool>("byte_fallback").value_or(false);
  fuse_unk_ = model.find<bool>("fuse_unk").value_or(false);
  if (byte_level && byte_fallback_) {  // it would look up the bytes of the alphabet's characters
    model.fail("byte_fallback", "true together with the ByteLevel pre-tokenizer is not implemented");
  }
  read_vocab(model);
  if (const auto unk = model.find<std::string>("unk_token")) {
    const auto id = id_of(*unk);
    if (!id) model.fail("unk_token", fmt::format("{} is not in the vocabulary", in_quotes(*unk)));
    unk_ = static_cast<int32_t>(*id);
  }
  read_merges(model);
  model.finish();
}

void Bpe::read_vocab(ConfigReader& model) {
  const auto* vocab = model.raw("vocab");
  if (!vocab || !vocab->is_object()) model.fail("vocab", "expected an object of tokens and ids");
  if (vocab->empty()) model.fail("vocab", "expected tokens, found none");
  if (vocab->size() > kMostTokens)
    model.fail("vocab", fmt::format("{} tokens, at most {}", vocab->size(), kMostTokens));
  tokens_.resize(vocab->size());
  std::vector<bool> taken(vocab->size());
  Problems problems;
  for (const auto& [token, value] : vocab->items()) {
    const auto at = fmt::format("{}: {}", model.at("vocab"), in_quotes(token));
    if (!value.is_number_integer() || value < 0 || value >= vocab->size()) {
      problems.add(fmt::format("{} has id {}; expected ids from 0 to {} without a gap", at, value.dump().substr(0, 40),
                               vocab->size() - 1));
      continue;
    }
    const auto id = value.get<int32_t>();
    if (taken[id]) {
      problems.add(fmt::format("{} and {} both have id {}; expected each id once", at, in_quotes(tokens_[id]), id));
      continue;
    }
    taken[id] = true;
    tokens_[id] = token;
  }
  problems.raise<LoadError>(model.at("vocab"));
  ids_.reserve(tokens_.size());
  for (size_t id = 0; id < tokens_.size(); ++id) ids_.emplace(tokens_[id], static_cast<int32_t>(id));

  byte_ids_.fill(-1), fallback_ids_.fill(-1);
  if (byte_level_) {
    words_.reserve(tokens_.size());
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (auto bytes = bytes_of_level(tokens_[id])) words_.emplace(std::move(*bytes), static_cast<int32_t>(id));
    }
    for (int b = 0; b < 256; ++b) {
      const char byte = static_cast<char>(b);
      if (const auto it = words_.find(std::string_view(&byte, 1)); it != words_.end()) byte_ids_[b] = it->second;
    }
  } else {
    character_ids_.assign(0x110000, -1);
    for (size_t id = 0; id < tokens_.size(); ++id) {
      size_t at = 0;
      if (tokens_[id].empty()) continue;
      const auto c = next_code_point(tokens_[id], at);
      if (at == tokens_[id].size()) character_ids_[c] = static_cast<int32_t>(id);
    }
  }
  for (int b = 0; b < 256; ++b) {
    if (const auto id = id_of(fmt::format("<0x{:02X}>", b))) fallback_ids_[b] = static_cast<int32_t>(*id);
  }
}

void Bpe::read_merges(ConfigReader& model) {
  const auto* merges = model.raw("merges");
  if (!merges || !merges->is_array()) model.fail("merges", "expected a list of merges");
  if (merges->size() > kMostTokens) model.fail("merges", fmt::format("{}, at most {}", merges->size(), kMostTokens));
  merges_.reserve(merges->size());
  Problems problems;
  for (size_t rank = 0; rank < merges->size(); ++rank) {
    const auto& merge = (*merges)[rank];
    const auto at = [&] { return fmt::format("{}/{}", model.at("merges"), rank); };
    std::string_view left, right;
    if (merge.is_string()) {
      const std::string_view both = merge.get_ref<const std::string&>();
      const auto space = both.find(' ');
      if (space != std::string_view::npos && both.find(' ', space + 1) == std::string_view::npos) {
        left = both.substr(0, space), right = both.substr(space + 1);
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>(), right = merge[1].get_ref<const std::string&>();
    }
    if (left.empty() || right.empty()) {
      problems.add(fmt::format("{}: expected \"left right\" or [left, right], found {}", at(),
                               merge.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 80)));
      continue;
    }
    const auto made = std::string(left).append(right);
    const auto find = [&](std::string_view token) {
      const auto it = ids_.find(token);
      if (it == ids_.end()) problems.add(fmt::format("{}: {} is not in the vocabulary", at(), in_quotes(token)));
      return it == ids_.end() ? -1 : it->second;
    };
    const auto a = find(left), b = find(right), id = find(made);
    if (a < 0 || b < 0 || id < 0) continue;
    merges_.put(a, b, {static_cast<int32_t>(rank), id});  // of a pair that is there twice, the later counts
  }
  problems.raise<LoadError>(model.at("merges"));
}

std::optional<int64_t> Bpe::id_of(std::string_view token) const {
  const auto it = ids_.find(token);
  return it == ids_.end() ? std::nullopt : std::optional<int64_t>(it->second);
}

const std::string* Bpe::token(int64_t id) const { return id < 0 || id >= size() ? nullptr : &tokens_[id]; }

void Bpe::characters(std::string_view word, std::vector<Symbol>& out) const {
  std::optional<Symbol> unknown;  // not yet put
  const auto flush = [&] {
    if (unknown) out.push_back(*unknown);
    unknown.reset();
  };
  for (size_t at = 0; at < word.size();) {
    const auto begin = at;
    int32_t id;
    if (byte_level_) {
      id = byte_ids_[static_cast<unsigned char>(word[at++])];
    } else {
      id = character_ids_[next_code_point(word, at)];
    }
    const auto length = static_cast<uint32_t>(at - begin);
    if (id >= 0) {
      flush();
      out.push_back({id, length});
      continue;
    }
    if (byte_fallback_) {
      const auto bytes = word.substr(begin, length);
      const auto known = [&](char b) { return fallback_ids_[static_cast<unsigned char>(b)] >= 0; };
      if (std::all_of(bytes.begin(), bytes.end(), known)) {
        for (const char b : bytes) out.push_back({fallback_ids_[static_cast<unsigned char>(b)], 1});
        continue;
      }
    }
    if (!unk_) continue;  // nothing stands for it
    if (unknown && fuse_unk_) {
      unknown->bytes += length;
    } else {
      flush();
      unknown = Symbol{*unk_, length};
    }
  }
  flush();
}

void Bpe::merge_word(std::string_view word, std::vector<Symbol>& out) const {
  thread_local std::vector<Symbol> symbols;
  symbols.clear();
  characters(word, symbols);
  const auto count = static_cast<int32_t>(symbols.size());
  if (count < 2) {
    out.insert(out.end(), symbols.begin(), symbols.end());
    return;
  }
  // A list of symbols, and the merges that are possible in it: lowest rank first, of equals the leftmost. One that is
  // no longer possible when its turn comes is passed over.
  struct Possible {
    int32_t rank, at, made;
    bool operator<(const Possible& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  thread_local std::vector<int32_t> previous, next;
  thread_local std::vector<Possible> heap;
  previous.resize(count), next.resize(count), heap.clear();
  const auto consider = [&](int32_t at) {
    const auto right = next[at];
    if (right < 0) return;
    if (const auto* merge = merges_.find(symbols[at].id, symbols[right].id)) {
      heap.push_back({merge->rank, at, merge->made});
    }
  };
  for (int32_t i = 0; i < count; ++i) previous[i] = i - 1, next[i] = i + 1 < count ? i + 1 : -1;
  for (int32_t i = 0; i < count; ++i) consider(i);
  std::make_heap(heap.begin(), heap.end());
  const auto consider_later = [&](int32_t at) {
    const auto before = heap.size();
    consider(at);
    if (heap.size() != before) std::push_heap(heap.begin(), heap.end());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const auto top = heap.back();
    heap.pop_back();
    auto& left = symbols[top.at];
    if (left.bytes == 0 || next[top.at] < 0) continue;  // merged into another since
    auto& right = symbols[next[top.at]];
    const auto* merge = merges_.find(left.id, right.id);
    if (!merge || merge->made != top.made) continue;
    left = {top.made, left.bytes + right.bytes};
    right.bytes = 0;
    next[top.at] = next[next[top.at]];
    if (next[top.at] >= 0) previous[next[top.at]] = top.at;
    if (previous[top.at] >= 0) consider_later(previous[top.at]);
    consider_later(top.at);
  }
  for (int32_t at = 0; at >= 0; at = next[at]) out.push_back(symbols[at]);
}

Bpe::Encoder::Encoder(const Bpe& model) : model_(model), memory_(model.memory_mutex_, std::try_to_lock) {}

void Bpe::Encoder::encode(std::string_view word, std::vector<Symbol>& out) {
  if (word.empty()) return;
  if (model_.ignore_merges_) {
    const auto& known = model_.byte_level_ ? model_.words_ : model_.ids_;
    if (const auto it = known.find(word); it != known.end()) {
      out.push_back({it->second, static_cast<uint32_t>(word.size())});
      return;
    }
  }
  if (!memory_.owns_lock() || word.size() > kLongest) return model_.merge_word(word, out);
  auto& memory = model_.memory_;
  auto it = memory.find(word);
  if (it == memory.end()) {
    if (memory.size() >= kRemembered) memory.clear();
    std::vector<Symbol> symbols;
    model_.merge_word(word, symbols);
    it = memory.emplace(std::string(word), std::move(symbols)).first;
  }
  out.insert(out.end(), it->second.begin(), it->second.end());
}

}  // namespace lockstep
