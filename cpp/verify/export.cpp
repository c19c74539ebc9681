#include "verify/export.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/sha256.h"
#include "core/tensor_text.h"
#include "io/safetensors_writer.h"
#include "verify/manifest.h"

namespace lockstep {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

bool is_mount_point(const std::string& folder) {
  struct stat own, above;
  return ::stat(folder.c_str(), &own) == 0 && ::stat((folder + "/..").c_str(), &above) == 0 &&
         own.st_dev != above.st_dev;
}

/// -> `out` with its parent resolved. Raises LoadError for a place that an export must not take.
std::string checked_target(const std::string& source, const std::string& out) {
  fs::path at(out);
  if (!at.has_filename()) at = at.parent_path();  // out/ is out
  std::error_code ec;
  if (out.empty() || at.filename().empty() || at.filename() == "." || at.filename() == "..") {
    throw LoadError(fmt::format("{}: expected the name of a new folder", out.empty() ? "OUT" : out));
  }
  if (fs::is_symlink(at, ec)) throw LoadError(fmt::format("{}: is a link; name the folder itself", out));
  const auto parent = fs::canonical(at.has_parent_path() ? at.parent_path() : fs::path("."), ec);
  if (ec || !fs::is_directory(parent, ec)) {
    throw LoadError(fmt::format("{}: the folder {} does not exist", out, at.parent_path().string()));
  }
  const auto target = parent / at.filename();
  const auto from = fs::canonical(source, ec);
  if (target == from) throw LoadError(fmt::format("{}: is the source itself; name another folder", out));
  for (auto up = parent;; up = up.parent_path()) {
    if (up == from) throw LoadError(fmt::format("{}: lies inside of the source {}; name another folder", out, source));
    if (up == up.parent_path()) break;
  }
  if (fs::exists(target, ec)) {
    if (!fs::is_directory(target, ec)) throw LoadError(fmt::format("{}: is there and no folder", out));
    if (is_mount_point(target.string()))
      throw LoadError(
          fmt::format("{}: is a mount point, which nothing can take the place of; name a folder in it", out));
    if (!fs::is_empty(target, ec))
      throw LoadError(fmt::format("{}: is not empty; name a new folder, or remove it", out));
  }
  return target.string();
}

}  // namespace

Export::Export(const Mirror& source, const std::string& out, const ExportOptions& options)
    : source_(source),
      staged_(checked_target(source.checkpoint().folder(), out)),
      plan_(plan_export(source, options)) {}

void Export::add_file(const std::string& name, const std::string& from, const FileDigest& digest) {
  files_[name] = {{"bytes", digest.bytes}, {"from", from}, {"sha256", digest.sha256}};
}

void Export::write_text(const std::string& name, const std::string& from, const std::string& text) {
  NewFile file((fs::path(folder()) / name).string());
  file.write(text);
  file.finish();
  Sha256 sha;
  sha.update(text);
  add_file(name, from, {text.size(), sha.hex()});
}

void Export::write(const Say& say) {
  const auto& checkpoint = source_.checkpoint();
  const fs::path from(checkpoint.folder());
  auto source_file = [&](const std::string& name) {
    const auto digest = digest_file((from / name).string());
    source_files_[name] = {{"bytes", digest.bytes}, {"sha256", digest.sha256}};
    return digest;
  };
  for (const auto& name : checkpoint.file_names()) {
    say(fmt::format("reading {}", name));
    source_file(name);
  }
  for (const auto& [name, tensors] : plan_.shards) {
    std::vector<TensorInfo> infos;
    std::map<std::string, const PlannedTensor*> by_name;
    for (const auto& t : tensors) infos.push_back(t.info), by_name[t.info.name] = &t;
    SafetensorsWriter writer((fs::path(folder()) / name).string(), infos, {{"format", "pt"}});
    uint64_t written = 0, whole = writer.tensors().empty() ? 0 : writer.tensors().back().end;
    for (const auto& info : writer.tensors()) {
      const auto& t = *by_name.at(info.name);
      Sha256 sha;
      const auto changed = exported_bytes(checkpoint, t, [&](const char* data, size_t size) {
        sha.update(data, size);
        writer.write(data, size);
        written += size;
        say(fmt::format("writing {}: {} of {} MB", name, written >> 20, whole >> 20));
      });
      const auto digest = sha.hex();
      std::string before = digest;
      if (t.converted()) {
        Sha256 source_sha;
        source_sha.update(checkpoint.bytes(info.name).data(), checkpoint.bytes(info.name).size());
        before = source_sha.hex();
      }
      tensors_[info.name] = stated_tensor(t, name, digest, before, source_files_[t.source_file]["sha256"], changed);
    }
    writer.finish();
    add_file(name, "weights", digest_file((fs::path(folder()) / name).string()));
  }
  source_file("config.json");
  write_text("config.json", plan_.options.dtype ? "dtype" : "source", plan_.config);
  if (!plan_.index.empty()) write_text("model.safetensors.index.json", "weights", plan_.index);
  for (const auto& name : plan_.files) {
    const auto file = MappedFile::open((from / name).string());
    NewFile copy((fs::path(folder()) / name).string());
    copy.write(file->data(), file->size());
    copy.finish();
    file->check_unchanged();
    add_file(name, "source", source_file(name));
  }
}

void Export::reread(const Say& say) {
  const auto written = Checkpoint::open(folder());
  Problems problems;
  for (const auto& [shard, tensors] : plan_.shards) {
    for (const auto& t : tensors) {
      say(fmt::format("reading back {}", t.info.name));
      const auto& name = t.info.name;
      if (!written.has(name) || written.info(name).dtype != t.info.dtype || written.info(name).shape != t.info.shape) {
        problems.add(fmt::format("{}: is not in {} as it was written", name, shard));
        continue;
      }
      const auto bytes = written.bytes(name);
      size_t at = 0;
      bool same = true;
      exported_bytes(source_.checkpoint(), t, [&](const char* data, size_t size) {
        same = same && at + size <= bytes.size() && std::memcmp(bytes.data() + at, data, size) == 0;
        at += size;
      });
      if (!same || at != bytes.size())
        problems.add(fmt::format("{}: its bytes in {} are not those written", name, shard));
    }
  }
  for (const auto& [name, file] : files_.items()) {
    if (digest_file((fs::path(folder()) / name).string()).sha256 != file["sha256"]) {
      problems.add(fmt::format("{}: its bytes are not those written", name));
    }
  }
  problems.raise<LoadError>(folder());
  written.check_unchanged();
  source_.checkpoint().check_unchanged();
}

json Export::finish(const std::string& report, const json& producer, const json& verification) {
  write_text(kReport, "report", report);
  source_.checkpoint().check_unchanged();
  const auto written = Checkpoint::open(folder());
  std::map<std::string, std::string> digests;
  for (const auto& [name, tensor] : tensors_.items()) digests[name] = tensor["sha256"];
  const auto& options = plan_.options;
  const auto& mechanisms = source_.model().mechanisms();
  json manifest{
      {"format_version", kManifestVersion},
      {"producer", producer},
      {"model",
       {{"family", source_.family().name},
        {"layer_types", mechanisms.layer_types},
        {"digest", digest_of(written, digests)}}},
      {"source",
       {{"digest", digest_of(source_.checkpoint(), source_.checkpoint().digests())}, {"files", source_files_}}},
      {"options",
       {{"dtype", options.dtype ? json(dtype_name(*options.dtype)) : json()},
        {"max_shard_size", options.max_shard_size ? json(*options.max_shard_size) : json()},
        {"keep", options.text_only ? "text" : "all"}}},
      {"verification", verification},
      {"files", files_},
      {"tensors", tensors_},
      {"left_out", {{"tensors", plan_.tensors_left_out}, {"files", plan_.files_left_out}}}};
  const auto text = manifest_text(manifest);
  manifest = json::parse(text);
  NewFile file((fs::path(folder()) / kManifest).string());
  file.write(text);
  file.finish();
  staged_.become_target();
  return manifest;
}

}  // namespace lockstep
