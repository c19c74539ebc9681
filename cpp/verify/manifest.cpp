#include "verify/manifest.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/json.h"
#include "core/sha256.h"

namespace lockstep {

using nlohmann::json;

namespace {

std::string rendered(const json& manifest) { return manifest.dump(1) + "\n"; }

/// `at` has these members, of these types, and no others.
void expect(const json& at, const std::string& where,
            std::initializer_list<std::pair<const char*, json::value_t>> members) {
  if (!at.is_object()) throw LoadError(where + ": expected an object");
  for (const auto& [key, type] : members) {
    const auto it = at.find(key);
    if (it == at.end() || it->type() != type) {
      throw LoadError(fmt::format("{}/{}: expected {}, found {}", where, key, json(type).type_name(),
                                  it == at.end() ? "nothing" : it->type_name()));
    }
  }
  if (at.size() != members.size()) {
    for (const auto& [key, _] : at.items()) {
      bool known = false;
      for (const auto& member : members) known = known || key == member.first;
      if (!known) throw LoadError(fmt::format("{}/{}: unknown key", where, key));
    }
  }
}

void expect_texts(const json& at, const std::string& where) {
  for (const auto& entry : at) {
    if (!entry.is_string()) throw LoadError(where + ": expected a list of texts");
  }
}

}  // namespace

std::string manifest_digest(json manifest) {
  manifest.erase("digest");
  Sha256 sha;
  sha.update(rendered(manifest));
  return sha.hex();
}

std::string manifest_text(json manifest) {
  manifest["digest"] = manifest_digest(manifest);
  return rendered(manifest);
}

std::string altered(const std::string& text) {
  json manifest;
  try {
    manifest = parse_json(text, "it");
    if (!manifest.is_object()) return "not an object";
    if (rendered(manifest) != text) return "its text is not as lockstep writes it";
  } catch (const LoadError& error) {
    return error.what();
  } catch (const json::exception& error) {
    return error.what();
  }
  const auto stated = manifest.find("digest");
  if (stated == manifest.end() || !stated->is_string()) return "it states no digest";
  const auto digest = manifest_digest(manifest);
  return *stated == digest ? "" : fmt::format("its content has the digest {}, it states {}", digest, stated->dump());
}

bool of_another_version(const std::string& text) {
  const auto manifest = json::parse(text, nullptr, false);
  if (!manifest.is_object()) return false;
  const auto version = manifest.find("format_version");
  return version != manifest.end() && version->is_number_integer() && *version != kManifestVersion;
}

json read_manifest(const std::string& text, const std::string& where) {
  auto m = parse_json(text, where);
  const auto version = m.is_object() ? m.find("format_version") : m.end();
  if (!m.is_object() || version == m.end() || !version->is_number_integer()) {
    throw LoadError(where + " /format_version: expected a whole number");
  }
  if (version->get<int64_t>() != kManifestVersion) {
    throw LoadError(fmt::format("{} /format_version: {} is not known (known: {}); use the lockstep that wrote it",
                                where, version->dump(), kManifestVersion));
  }
  using type = json::value_t;
  expect(m, where + " ",
         {{"format_version", type::number_unsigned},
          {"producer", type::object},
          {"model", type::object},
          {"source", type::object},
          {"options", type::object},
          {"verification", type::object},
          {"files", type::object},
          {"tensors", type::object},
          {"left_out", type::object},
          {"digest", type::string}});
  for (const auto& [name, file] : m["files"].items()) {
    expect(file, where + " /files/" + name,
           {{"bytes", type::number_unsigned}, {"from", type::string}, {"sha256", type::string}});
  }
  for (const auto& [name, tensor] : m["tensors"].items()) {
    const auto at = where + " /tensors/" + name;
    expect(tensor, at,
           {{"conversion", type::string},
            {"changed", type::number_unsigned},
            {"dtype", type::string},
            {"file", type::string},
            {"sha256", type::string},
            {"shape", type::array},
            {"source", type::object}});
    expect(tensor["source"], at + "/source",
           {{"dtype", type::string}, {"file", type::string}, {"file_sha256", type::string}, {"sha256", type::string}});
    for (const auto& d : tensor["shape"]) {
      if (!d.is_number_unsigned()) throw LoadError(at + "/shape: expected sizes");
    }
  }
  expect(m["left_out"], where + " /left_out", {{"files", type::array}, {"tensors", type::array}});
  for (const char* key : {"files", "tensors"}) expect_texts(m["left_out"][key], where + " /left_out/" + key);
  expect(m["model"], where + " /model",
         {{"digest", type::string}, {"family", type::string}, {"layer_types", type::array}});
  expect(m["source"], where + " /source", {{"digest", type::string}, {"files", type::object}});
  for (const auto& [name, file] : m["source"]["files"].items()) {
    expect(file, where + " /source/files/" + name, {{"bytes", type::number_unsigned}, {"sha256", type::string}});
  }
  expect(m["options"], where + " /options",
         {{"dtype", m["options"].value("dtype", json()).is_null() ? type::null : type::string},
          {"keep", type::string},
          {"max_shard_size",
           m["options"].value("max_shard_size", json()).is_null() ? type::null : type::number_unsigned}});
  const auto& options = m["options"];
  if (options["keep"] != "all" && options["keep"] != "text")
    throw LoadError(where + " /options/keep: expected all or text");
  for (const auto& name : m["left_out"]["tensors"]) {
    if (options["keep"] == "all" || m["tensors"].contains(name.get<std::string>())) {
      throw LoadError(fmt::format("{} /left_out/tensors: {} was not left out", where, name.dump()));
    }
  }
  for (const auto& [name, tensor] : m["tensors"].items()) {
    const auto& origin = tensor["source"];
    const auto file = m["source"]["files"].find(origin["file"].get<std::string>());
    if (file == m["source"]["files"].end() || (*file)["sha256"] != origin["file_sha256"]) {
      throw LoadError(fmt::format("{} /tensors/{}/source: not a file that /source/files states", where, name));
    }
    if (tensor["conversion"] == "none" && tensor["sha256"] != tensor["source"]["sha256"]) {
      throw LoadError(fmt::format("{} /tensors/{}: not converted, and yet other bytes than its source's", where, name));
    }
  }
  return m;
}

}  // namespace lockstep
