#include "verify/check.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/json.h"
#include "core/metrics.h"
#include "core/sha256.h"
#include "core/tensor_text.h"
#include "verify/manifest.h"

namespace lockstep {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kAbsent = "absent";

std::string file_text(const FileDigest& d) { return fmt::format("{} bytes, sha256 {}", d.bytes, d.sha256); }
std::string file_text(const json& d) {
  return file_text(FileDigest{d["bytes"].get<uint64_t>(), d["sha256"].get<std::string>()});
}
std::string tensor_text(const std::string& dtype, const std::vector<int64_t>& shape, const std::string& sha256) {
  return fmt::format("{} {} sha256 {}", dtype, shape_text(shape), sha256);
}

std::string bytes_text(const json& stated) { return tensor_text(stated["dtype"], stated["shape"], stated["sha256"]); }
/// Where a tensor came from and what became of it.
std::string origin_text(const json& stated) {
  const auto& source = stated["source"];
  return fmt::format("{} {} of {}, conversion {}, {} changed", source["dtype"].get<std::string>(),
                     source["sha256"].get<std::string>(), source["file"].get<std::string>(),
                     stated["conversion"].get<std::string>(), stated["changed"].dump());
}

/// One check in progress: rows of files and tensors.
class Check {
 public:
  Check(const std::string& folder, const Say& say) : folder_(folder), say_(say) {}

  /// -> the manifest if it can be used, else null; a row for it either way.
  json manifest(const std::optional<std::string>& digest);
  void files(const json& manifest);
  void tensors(const json& manifest);
  void source(const json& manifest, const std::string& folder);
  json finish(const json& manifest) const;

 private:
  void row(json& rows, const std::string& name, const std::string& expected, const std::string& found);
  std::string path(const std::string& name) const { return (fs::path(folder_) / name).string(); }
  const std::string folder_;
  const Say& say_;
  json files_ = json::array(), tensors_ = json::array(), first_;
  Verdict verdict_ = Verdict::identical;
};

void Check::row(json& rows, const std::string& name, const std::string& expected, const std::string& found) {
  const auto verdict = expected == found ? Verdict::identical : found == kAbsent ? Verdict::missing : Verdict::deviates;
  const auto shown =
      json::parse(json(name).dump(-1, ' ', false, json::error_handler_t::replace));  // a name may be no UTF-8
  rows.push_back({{"name", shown}, {"expected", expected}, {"found", found}, {"verdict", lockstep::name(verdict)}});
  if (verdict != Verdict::identical && first_.is_null()) first_ = rows.back();
  verdict_ = std::max(verdict_, verdict);
}

json Check::manifest(const std::optional<std::string>& digest) {
  const auto file = path(kManifest);
  std::error_code ec;
  if (!fs::is_regular_file(file, ec)) {
    throw LoadError(fmt::format("{}: no {}; expected a folder that `lockstep export` made", folder_, kManifest));
  }
  const auto text = read_text(file);
  const auto problem = altered(text);
  row(files_, kManifest, "as it was written", problem.empty() ? "as it was written" : problem);
  json found;
  try {
    found = read_manifest(text, file);
  } catch (const LoadError&) {
    if (problem.empty() || of_another_version(text)) throw;
    return {};
  }
  if (digest) row(files_, std::string(kManifest) + " digest", *digest, found["digest"]);
  return found;
}

void Check::files(const json& manifest) {
  for (const auto& [name, stated] : manifest["files"].items()) {
    say_("reading " + name);
    std::string found = kAbsent;
    std::error_code ec;
    // A manifest that somebody made may state any name: only names in this folder are looked at.
    if (name.find('/') == std::string::npos && fs::exists(path(name), ec)) {
      try {
        found = file_text(digest_file(path(name)));
      } catch (const LoadError& error) {
        found = error.what();
      }
    }
    row(files_, name, file_text(stated), found);
  }
  std::set<std::string> there;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(folder_, ec)) there.insert(entry.path().filename().string());
  if (ec) throw LoadError(fmt::format("{}: cannot be read: {}", folder_, ec.message()));
  for (const auto& name : there) {
    if (name == kManifest || manifest["files"].contains(name)) continue;
    row(files_, name, kAbsent, fs::is_directory(path(name), ec) ? "a folder" : "a file that is not stated");
  }
}

void Check::tensors(const json& manifest) {
  std::map<std::string, SafetensorsFile> shards;
  for (const auto& [name, stated] : manifest["files"].items()) {
    if (fs::path(name).extension() != ".safetensors" || name.find('/') != std::string::npos) continue;
    try {
      shards.emplace(name, SafetensorsFile::open(path(name)));
    } catch (const LoadError&) {  // its row among the files says so; its tensors are absent
    }
  }
  for (const auto& [name, stated] : manifest["tensors"].items()) {
    say_("reading " + name);
    const auto expected = tensor_text(stated["dtype"], stated["shape"], stated["sha256"]);
    const auto shard = shards.find(stated["file"]);
    if (shard == shards.end() || !shard->second.tensors().count(name)) {
      row(tensors_, name, expected, kAbsent);
      continue;
    }
    const auto& info = shard->second.tensors().at(name);
    Sha256 sha;
    sha.update(shard->second.bytes(info), info.end - info.begin);
    row(tensors_, name, expected, tensor_text(info.dtype, info.shape, sha.hex()));
  }
  for (const auto& [file, shard] : shards) {
    for (const auto& [name, info] : shard.tensors()) {
      const auto stated = manifest["tensors"].find(name);
      if (stated == manifest["tensors"].end() || (*stated)["file"] != file) {
        row(tensors_, name, kAbsent, "a tensor of " + file + " that is not stated");
      }
    }
    shard.check_unchanged();
  }
  if (verdict_ != Verdict::identical) return;
  try {  // every file is as stated; is it a checkpoint?
    const auto checkpoint = Checkpoint::open(folder_);
    std::map<std::string, std::string> digests;
    for (const auto& [name, stated] : manifest["tensors"].items()) {
      if (checkpoint.has(name)) digests[name] = stated["sha256"];
    }
    row(files_, "the tensors together", manifest["model"]["digest"], digest_of(checkpoint, digests));
  } catch (const LoadError& error) {
    row(files_, "the checkpoint", "loads", error.what());
  }
}

void Check::source(const json& manifest, const std::string& folder) {
  const auto source = Mirror::open(folder);
  ExportOptions options;
  const auto& stated = manifest["options"];
  if (!stated["dtype"].is_null()) {
    options.dtype = run_dtype(stated["dtype"]);
    if (!options.dtype)
      throw LoadError(fmt::format("{} /options/dtype: {} is not known", kManifest, stated["dtype"].dump()));
  }
  if (!stated["max_shard_size"].is_null()) options.max_shard_size = stated["max_shard_size"].get<uint64_t>();
  options.text_only = stated["keep"] == "text";
  const auto plan = plan_export(*source, options);
  const auto& checkpoint = source->checkpoint();
  const auto digests = checkpoint.digests();
  std::map<std::string, FileDigest> read;  // of the source
  const auto file = [&](const std::string& name) -> const FileDigest& {
    const auto it = read.find(name);
    if (it != read.end()) return it->second;
    say_("reading " + name + " of the source");
    return read[name] = digest_file((fs::path(folder) / name).string());
  };
  std::set<std::string> derived;
  for (const auto& [shard, tensors] : plan.shards) {
    for (const auto& t : tensors) {
      const auto& name = t.info.name;
      say_("deriving " + name);
      derived.insert(name);
      Sha256 sha;
      const auto changed =
          exported_bytes(checkpoint, t, [&](const char* data, size_t size) { sha.update(data, size); });
      const auto expected = stated_tensor(t, shard, sha.hex(), digests.at(name), file(t.source_file).sha256, changed);
      const auto it = manifest["tensors"].find(name);
      const bool stated = it != manifest["tensors"].end();
      row(tensors_, name + " of the source", bytes_text(expected), stated ? bytes_text(*it) : kAbsent);
      if (stated) row(tensors_, "the origin of " + name, origin_text(expected), origin_text(*it));
    }
  }
  for (const auto& [name, _] : manifest["tensors"].items()) {
    if (!derived.count(name)) row(tensors_, name + " of the source", kAbsent, "a tensor that the source does not have");
  }
  const auto of_file = [&](const std::string& name, const std::string& from, const FileDigest& digest) {
    const auto it = manifest["files"].find(name);
    const bool stated = it != manifest["files"].end();
    row(files_, name + " of the source", file_text(digest), stated ? file_text(*it) : kAbsent);
    if (stated) row(files_, "the origin of " + name, from, (*it)["from"]);
  };
  Sha256 config;
  config.update(plan.config);
  of_file("config.json", options.dtype ? "dtype" : "source", {plan.config.size(), config.hex()});
  for (const auto& name : plan.files) of_file(name, "source", file(name));
  std::set<std::string> made{"config.json", kReport};
  made.insert(plan.files.begin(), plan.files.end());
  for (const auto& [shard, _] : plan.shards) made.insert(shard);
  if (!plan.index.empty()) {
    constexpr const char* kIndex = "model.safetensors.index.json";
    Sha256 index;
    index.update(plan.index);
    of_file(kIndex, "weights", {plan.index.size(), index.hex()});
    made.insert(kIndex);
  }
  for (const auto& [name, _] : manifest["files"].items()) {
    if (!made.count(name)) row(files_, name + " of the source", kAbsent, "a file that no export of the source has");
  }
  file("config.json");
  for (const auto& name : checkpoint.file_names()) file(name);
  for (const auto& [name, digest] : read) {
    const auto it = manifest["source"]["files"].find(name);
    row(files_, "the source's " + name, file_text(digest),
        it == manifest["source"]["files"].end() ? kAbsent : file_text(*it));
  }
  for (const auto& [name, _] : manifest["source"]["files"].items()) {
    if (!read.count(name)) row(files_, "the source's " + name, kAbsent, "a file that nothing was made of");
  }
  row(files_, "the source's tensors together", digest_of(checkpoint, digests), manifest["source"]["digest"]);
  const auto left_out = [&](const char* kind, const std::vector<std::string>& expected) {
    row(files_, fmt::format("{} left out", kind), json(expected).dump(), manifest["left_out"][kind].dump());
  };
  left_out("tensors", plan.tensors_left_out), left_out("files", plan.files_left_out);
  source->checkpoint().check_unchanged();
}

json Check::finish(const json& manifest) const {
  const bool passes = verdict_ == Verdict::identical;
  return {{"format_version", kManifestVersion},
          {"command", "check"},
          {"verdict", lockstep::name(verdict_)},
          {"model", manifest.is_null() ? json() : manifest["model"]},
          {"exit_code", passes ? 0 : 1},
          {"digest", manifest.is_null() ? json() : manifest["digest"]},
          {"verification", manifest.is_null() ? json() : manifest["verification"]},
          {"first", first_},
          {"files", files_},
          {"tensors", tensors_}};
}

}  // namespace

json check_export(const std::string& folder, const CheckOptions& options, const Say& say) {
  std::error_code ec;
  if (!fs::is_directory(folder, ec))
    throw LoadError(fmt::format("{}: expected a folder that `lockstep export` made", folder));
  if (options.digest &&
      (options.digest->size() != 64 || options.digest->find_first_not_of("0123456789abcdef") != std::string::npos)) {
    throw InputError(
        fmt::format("--digest {}: expected the 64 hexadecimal digits that the export printed", *options.digest));
  }
  Check check(folder, say);
  const auto manifest = check.manifest(options.digest);
  if (!manifest.is_null()) {
    check.files(manifest);
    check.tensors(manifest);
    if (options.source) check.source(manifest, *options.source);
  }
  return check.finish(manifest);
}

std::vector<std::string> check_lines(const json& data, size_t shown) {
  std::vector<std::string> lines;
  size_t bad = 0;
  for (const char* kind : {"files", "tensors"}) {
    for (const auto& row : data[kind]) {
      if (row["verdict"] == "identical") continue;
      if (++bad > shown) continue;
      lines.push_back(fmt::format("{}: expected {}, found {}", row["name"].get<std::string>(),
                                  row["expected"].get<std::string>(), row["found"].get<std::string>()));
    }
  }
  if (shown && bad > shown) lines.push_back(fmt::format("... and {} more", bad - shown));
  const auto counts = fmt::format("{} checks of files, {} of tensors", data["files"].size(), data["tensors"].size());
  if (!bad) {
    lines.push_back(fmt::format("passes: {}, all as stated; digest {}", counts, data["digest"].get<std::string>()));
  } else {
    lines.push_back(fmt::format("does not pass: {}, {} not as stated; first {}", counts, bad,
                                data["first"]["name"].get<std::string>()));
  }
  return lines;
}

}  // namespace lockstep
