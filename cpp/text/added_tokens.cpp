#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"
#include "text/utf8.h"

namespace lockstep {

void AddedTokens::Trie::put(std::string_view text, int32_t id) {
  if (text.empty()) return;
  if (nodes_.empty()) nodes_.emplace_back();
  starts_[static_cast<unsigned char>(text[0])] = true;
  int32_t node = 0;
  for (const char c : text) {
    auto& next = nodes_[node].next;
    auto it = std::lower_bound(next.begin(), next.end(), std::pair<char, int32_t>(c, 0));
    if (it == next.end() || it->first != c) {
      const auto made = static_cast<int32_t>(nodes_.size());
      next.insert(it, {c, made});
      nodes_.emplace_back();  // `next` is no longer valid
      node = made;
    } else {
      node = it->second;
    }
  }
  nodes_[node].id = id;
}

size_t AddedTokens::Trie::longest(std::string_view text, size_t at, int32_t& id) const {
  size_t length = 0;
  int32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto& next = nodes_[node].next;
    const auto it = std::lower_bound(next.begin(), next.end(), std::pair<char, int32_t>(text[i], 0));
    if (it == next.end() || it->first != text[i]) break;
    node = it->second;
    if (nodes_[node].id >= 0) length = i + 1 - at, id = nodes_[node].id;
  }
  return length;
}

AddedTokens::AddedTokens(ConfigReader& file, const std::string& key, const Bpe& model, const Normalizer* normalizer) {
  if (!file.has(key)) {
    file.ignore({key.c_str()});
    return;
  }
  int64_t expected = model.size();
  for (auto& reader : file.children(key)) {
    const auto id = reader.require<int64_t>("id");
    Token token;
    token.text = reader.require<std::string>("content");
    if (token.text.empty()) reader.fail("content", fmt::format("token {} is empty; expected some text", id));
    token.single_word = reader.find<bool>("single_word").value_or(false);
    token.lstrip = reader.find<bool>("lstrip").value_or(false);
    token.rstrip = reader.find<bool>("rstrip").value_or(false);
    token.special = reader.find<bool>("special").value_or(false);
    const bool normalized = reader.find<bool>("normalized").value_or(!token.special);
    reader.finish();
    const auto in_model = model.id_of(token.text);
    const auto right = in_model ? *in_model : expected;
    if (id != right) {
      reader.fail("id", fmt::format("{} of {}; expected {}, {}", id, nlohmann::json(token.text).dump(), right,
                                    in_model ? "as the vocabulary has it" : "the next after the vocabulary"));
    }
    if (!in_model) ++expected;
    if (ids_.count(token.text)) {
      reader.fail("content", fmt::format("{} is there twice", nlohmann::json(token.text).dump()));
    }
    TrackedText looked_for(token.text, false);
    if (normalized && normalizer) normalizer->apply(looked_for);
    tries_[normalized].put(looked_for.view(), static_cast<int32_t>(id));
    ids_.emplace(token.text, id);
    end_ = std::max(end_, id + 1);
    tokens_.emplace(id, std::move(token));
  }
}

std::vector<AddedTokens::Found> AddedTokens::cut(std::string_view text, bool normalized) const {
  std::vector<Found> found;
  const auto& trie = tries_[normalized];
  size_t done = 0;
  for (size_t at = 0; trie.any() && at < text.size();) {
    int32_t id = -1;
    const auto length = trie.begins(text[at]) ? trie.longest(text, at, id) : 0;
    if (!length) {
      ++at;
      continue;
    }
    auto begin = at, end = at + length;
    at = end;  // also where the match does not count: none overlaps another
    const auto& token = tokens_.at(id);
    if (token.single_word) {
      size_t after = end;
      if (begin > 0 && is_rust_word(code_point_before(text, begin))) continue;
      if (end < text.size() && is_rust_word(next_code_point(text, after))) continue;
    }
    if (token.lstrip) {
      while (begin > done && is_rust_white_space(code_point_before(text, begin))) {
        do --begin;
        while ((static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80);
      }
    }
    if (token.rstrip) {
      for (size_t next = end; next < text.size() && is_rust_white_space(next_code_point(text, next));) end = next;
    }
    if (end <= done) continue;  // taken by what the token before stripped
    begin = std::max(begin, done);
    if (done < begin) found.push_back({done, begin, std::nullopt});
    found.push_back({begin, end, id});
    done = end;
  }
  if (done != text.size()) found.push_back({done, text.size(), std::nullopt});
  return found;
}

std::optional<int64_t> AddedTokens::id_of(std::string_view token) const {
  const auto it = ids_.find(std::string(token));
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

const std::string* AddedTokens::token(int64_t id) const {
  const auto it = tokens_.find(id);
  return it == tokens_.end() ? nullptr : &it->second.text;
}

bool AddedTokens::is_special(int64_t id) const {
  const auto it = tokens_.find(id);
  return it != tokens_.end() && it->second.special;
}

}  // namespace lockstep
