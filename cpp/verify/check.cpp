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
    if (problem.empty()) throw;
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
  std::set<std::string> derived;
  for (const auto& [shard, tensors] : plan.shards) {
    for (const auto& t : tensors) {
      say_("deriving " + t.info.name);
      derived.insert(t.info.name);
      const auto expected = tensor_text(t.info.dtype, t.info.shape, exported_digest(source->checkpoint(), t));
      const auto it = manifest["tensors"].find(t.info.name);
      row(tensors_, t.info.name + " of the source", expected,
          it == manifest["tensors"].end() ? kAbsent : tensor_text((*it)["dtype"], (*it)["shape"], (*it)["sha256"]));
    }
  }
  for (const auto& [name, _] : manifest["tensors"].items()) {
    if (!derived.count(name)) row(tensors_, name + " of the source", kAbsent, "a tensor that the source does not have");
  }
  const auto of_file = [&](const std::string& name, const FileDigest& digest) {
    const auto it = manifest["files"].find(name);
    row(files_, name + " of the source", file_text(digest), it == manifest["files"].end() ? kAbsent : file_text(*it));
  };
  Sha256 config;
  config.update(plan.config);
  of_file("config.json", {plan.config.size(), config.hex()});
  for (const auto& name : plan.files) of_file(name, digest_file((fs::path(folder) / name).string()));
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
