#include "io/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/json.h"
#include "core/sha256.h"
#include "core/tensor_text.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool starts_with(const std::string& text, const std::string& prefix) { return text.rfind(prefix, 0) == 0; }
bool ends_with(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

/// The index's weight_map, its file names checked as strings. (Links are not resolved: a hub cache is made of links.)
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const auto index = parse_json(read_text(path), path);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    throw LoadError(fmt::format("{} /weight_map: expected an object from tensor names to file names", path));
  }
  std::map<std::string, std::string> weight_map;
  Problems problems;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos || name.find('\\') != std::string::npos ||
        name.find("..") != std::string::npos || !ends_with(name, ".safetensors")) {
      problems.add(fmt::format("{} /weight_map/{}: expected the name of a .safetensors file in this folder, found {}",
                               path, tensor, file.dump()));
      continue;
    }
    weight_map[tensor] = name;
  }
  problems.raise<LoadError>(path);
  return weight_map;
}

/// The released multimodal files nest the text model; HF's text class does not.
std::string mirror_name(const std::string& source) {
  static const std::string nested = "model.language_model.";
  return starts_with(source, nested) ? "model." + source.substr(nested.size()) : source;
}

bool is_weight_dtype(const std::string& dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16" || dtype == "F64";
}

}  // namespace

std::string IgnoredNames::rule(const std::string& source) const {
  for (const auto& prefix : prefixes) {
    if (starts_with(source, prefix)) return prefix + "*";
  }
  for (const auto& suffix : suffixes) {
    if (ends_with(source, suffix)) return "*" + suffix;
  }
  return "";
}

Checkpoint Checkpoint::open(const std::string& folder) {
  Checkpoint c;
  c.folder_ = folder;
  const fs::path at(folder);
  std::error_code ec;  // a link to itself is no file, not an exception
  auto exists = [&](const fs::path& path) { return fs::exists(path, ec); };
  if (!fs::is_directory(at, ec)) throw LoadError(fmt::format("{}: expected a checkpoint folder", folder));
  const auto config_path = (at / "config.json").string();
  if (!exists(config_path))
    throw LoadError(fmt::format("{}: no config.json; expected a Hugging Face checkpoint", folder));
  c.config_ = parse_json(read_text(config_path), config_path);
  if (!c.config_.is_object()) throw LoadError(fmt::format("{}: expected an object", config_path));

  const bool single = exists(at / kSingle), indexed = exists(at / kIndex);
  if (!single && !indexed) {
    const bool pickled = exists(at / "pytorch_model.bin") || exists(at / "pytorch_model.bin.index.json");
    throw LoadError(fmt::format("{}: no {} and no {}{}", folder, kSingle, kIndex,
                                pickled
                                    ? "; pytorch_model.bin is a pickle and is never opened: convert it to safetensors"
                                    : "; expected the checkpoint's weights there"));
  }
  if (single) {
    if (indexed)
      c.notes_.push_back(
          fmt::format("both {} and {} are there: {} is used, as transformers does", kSingle, kIndex, kSingle));
    c.shards_.push_back(SafetensorsFile::open((at / kSingle).string()));
    for (const auto& [name, info] : c.shards_[0].tensors()) c.where_[name] = 0;
    return c;
  }

  const auto weight_map = read_weight_map((at / kIndex).string());
  std::set<std::string> files;
  for (const auto& [tensor, file] : weight_map) files.insert(file);
  Problems problems;
  for (const auto& file : files) {
    if (!exists(at / file)) {
      int64_t lost = 0;
      for (const auto& [tensor, in] : weight_map) lost += in == file;
      problems.add(fmt::format("{}: shard {} is absent; {} promises {} tensors in it (incomplete download?)", folder,
                               file, kIndex, lost));
      continue;
    }
    const size_t shard = c.shards_.size();
    c.shards_.push_back(SafetensorsFile::open((at / file).string()));
    for (const auto& [name, info] : c.shards_.back().tensors()) {
      if (auto [it, fresh] = c.where_.emplace(name, shard); !fresh) {
        problems.add(
            fmt::format("{}: duplicate tensor: in {} and in {}", name, c.shards_[it->second].file_name(), file));
      }
      const auto promised = weight_map.find(name);
      if (promised == weight_map.end()) {
        problems.add(fmt::format("{}: shard {} holds it, {} does not list it", name, file, kIndex));
      }
    }
  }
  for (const auto& [tensor, file] : weight_map) {
    const auto shard =
        std::find_if(c.shards_.begin(), c.shards_.end(), [&](const auto& s) { return s.file_name() == file; });
    if (shard == c.shards_.end() || shard->tensors().count(tensor)) continue;
    problems.add(fmt::format("{}: {} promises it in {}, which lacks it", tensor, kIndex, file));
  }
  problems.raise<LoadError>(folder);
  return c;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> list;
  for (const auto& [name, shard] : where_) list.push_back(name);
  return list;
}

const TensorInfo& Checkpoint::info(const std::string& name) const {
  return shards_[where_.at(name)].tensors().at(name);
}
std::string Checkpoint::file_name(const std::string& name) const { return shards_[where_.at(name)].file_name(); }
at::Tensor Checkpoint::tensor(const std::string& name) const { return shards_[where_.at(name)].tensor(name); }

std::string_view Checkpoint::bytes(const std::string& name) const {
  const auto& t = info(name);
  return {shards_[where_.at(name)].bytes(t), t.end - t.begin};
}
std::vector<std::string> Checkpoint::file_names() const {
  std::vector<std::string> list;
  for (const auto& shard : shards_) list.push_back(shard.file_name());
  return list;
}

bool Checkpoint::same_tensor(const std::string& a, const std::string& b) const {
  const auto &x = info(a), &y = info(b);
  return x.dtype == y.dtype && x.shape == y.shape &&
         std::memcmp(shards_[where_.at(a)].bytes(x), shards_[where_.at(b)].bytes(y), x.end - x.begin) == 0;
}

std::vector<NameRow> Checkpoint::rows(const std::vector<WantedTensor>& wanted, const IgnoredNames& ignored,
                                      bool tie) const {
  std::map<std::string, const WantedTensor*> by_name;
  for (const auto& w : wanted) by_name[w.name] = &w;

  std::vector<NameRow> rows;
  std::map<std::string, std::string> taken;  // parameter -> source
  for (const auto& [source, shard] : where_) {
    const auto& t = info(source);
    NameRow row{source, "", t.shape, t.dtype, file_name(source), "ok", ""};
    const auto name = mirror_name(source);
    const auto it = by_name.find(name);
    if (!ignored.rule(source).empty()) {
      row.status = "ignored";
    } else if (it == by_name.end()) {
      row.status = "unexpected";
      row.problem = fmt::format("{}: unexpected; the model has no such parameter ({} in {})", source,
                                shape_text(t.shape), row.file);
    } else if (auto [other, fresh] = taken.emplace(name, source); !fresh) {
      row.parameter = name;
      row.status = "duplicate";
      row.problem = fmt::format("{}: duplicate: the files hold it as {} and as {}", name, other->second, source);
    } else {
      row.parameter = name;
      const auto& expected = it->second->shape;
      const auto found_dtype =
          torch_dtype(t.dtype) == at::ScalarType::Undefined ? t.dtype : dtype_name(torch_dtype(t.dtype));
      if (!is_weight_dtype(t.dtype)) {
        row.status = "dtype";
        row.problem = fmt::format(
            "{}: expected {} float32, bfloat16 or float16, found {} {} in {} (quantized checkpoints "
            "are not implemented)",
            source, shape_text(expected), shape_text(t.shape), found_dtype, row.file);
      } else if (t.shape != expected) {
        row.status = "shape";
        row.problem = fmt::format("{}: expected {}, found {} {} in {}", source, shape_text(expected),
                                  shape_text(t.shape), found_dtype, row.file);
      }
    }
    rows.push_back(row);
  }
  for (const auto& w : wanted) {
    if (taken.count(w.name)) continue;
    NameRow row{"", w.name, w.shape, "", "", "missing", ""};
    if (w.name == kHead && tie) {
      row.status = "tied";
    } else {
      row.problem = fmt::format("{}: missing; expected {} float32, bfloat16 or float16, found nothing in {}{}", w.name,
                                shape_text(w.shape), folder_,
                                w.name == kHead ? " (config.json does not say tie_word_embeddings)" : "");
    }
    rows.push_back(row);
  }
  const auto head = taken.find(kHead), embedding = taken.find(kEmbedding);
  if (tie && head != taken.end() && embedding != taken.end() && !same_tensor(head->second, embedding->second)) {
    for (auto& row : rows) {
      if (row.source != head->second || row.status != "ok") continue;
      row.status = "duplicate";
      row.problem = fmt::format(
          "{}: config.json says tied (tie_word_embeddings), but the files hold two different tensors, "
          "{} and {}; remove the one that is wrong, or set the flag to false",
          folder_, head->second, embedding->second);
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const NameRow& a, const NameRow& b) {
    return (a.source.empty() ? a.parameter : a.source) < (b.source.empty() ? b.parameter : b.source);
  });
  return rows;
}

Match Checkpoint::match(const std::vector<WantedTensor>& wanted, const IgnoredNames& ignored, bool tie) const {
  Match m;
  m.tied = tie;
  Problems problems;
  for (const auto& row : rows(wanted, ignored, tie)) {
    if (!row.problem.empty()) problems.add(row.problem);
    if (row.status == "ignored") ++m.ignored[ignored.rule(row.source)];
    if (row.status == "ok") m.source[row.parameter] = row.source;
  }
  problems.raise<LoadError>(folder_);
  if (tie && m.source.count(kHead)) {
    m.notes.push_back(
        fmt::format("{} is a redundant copy of {} (tied, same bytes)", m.source[kHead], m.source[kEmbedding]));
  }
  return m;
}

std::map<std::string, std::string> Checkpoint::digests(const std::atomic<bool>* given_up) const {
  const auto list = names();
  std::vector<std::pair<const void*, size_t>> ranges;
  for (const auto& name : list) {
    const auto& t = info(name);
    ranges.emplace_back(shards_[where_.at(name)].bytes(t), t.end - t.begin);
  }
  const auto hex = sha256_each(ranges, given_up);
  std::map<std::string, std::string> digests;
  for (size_t i = 0; i < list.size(); ++i) digests[list[i]] = hex[i];
  return digests;
}

void Checkpoint::check_unchanged() const {
  for (const auto& shard : shards_) shard.check_unchanged();
}

std::string digest_of(const Checkpoint& checkpoint, const std::map<std::string, std::string>& digests) {
  Sha256 sha;
  for (const auto& [name, hex] : digests) {
    const auto& info = checkpoint.info(name);
    sha.update(fmt::format("{} {} {} {}\n", name, info.dtype, shape_text(info.shape), hex));
  }
  return sha.hex();
}

}  // namespace lockstep
