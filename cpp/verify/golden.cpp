#include "verify/golden.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/sha256.h"
#include "core/tensor_text.h"
#include "nn/recorder.h"

namespace lockstep {

using nlohmann::json;

namespace {

/// SHA-256 over the manifest's text with zeros in place of its own digest.
std::string digest_of_manifest(const Trace& trace) {
  auto text = trace.file()->metadata().at("lockstep");
  const std::string digest = trace.manifest()["golden"]["digest"];
  const auto at = text.find("\"" + digest + "\"");
  if (digest.size() != 64 || at == std::string::npos) return "";
  text.replace(at + 1, digest.size(), std::string(digest.size(), '0'));
  Sha256 sha;
  sha.update(text);
  return sha.hex();
}

}  // namespace

std::string text_of(const json& manifest, const char* key) {
  const auto it = manifest.find(key);
  return it != manifest.end() && it->is_string() ? it->get<std::string>() : "";
}

std::shared_ptr<const Trace> open_golden(const std::string& path) {
  auto trace = std::make_shared<Trace>(Trace::open(path));
  const auto& m = trace->manifest();
  const auto refuse = [&](const char* what) -> void {
    throw LoadError(
        fmt::format("{}: not a golden trace: {}; record one with `lockstep trace MODEL --golden`", path, what));
  };
  const auto golden = m.find("golden");
  if (golden == m.end() || !golden->is_object()) refuse("its manifest has no object \"golden\"");
  const auto row = golden->find("len130");
  if (row == golden->end() || !row->is_array() || row->size() != 130 ||
      !std::all_of(row->begin(), row->end(), [](const json& id) {
        return id.is_number_unsigned() && id.get<uint64_t>() < (uint64_t{1} << 31);
      })) {
    refuse("its manifest's /golden/len130 is not a list of 130 ids");
  }
  const auto model = m.find("model");
  if (model == m.end() || !model->is_object() || !model->contains("tensors") || !(*model)["tensors"].is_object() ||
      (*model)["tensors"].empty()) {
    refuse("its manifest has no digest per tensor under /model/tensors");
  }
  for (const auto& [_, digest] : (*model)["tensors"].items()) {
    if (!digest.is_string()) refuse("a digest under /model/tensors is no text");
  }
  if (!run_dtype(trace->dtype())) refuse("it was not run in float32, bfloat16 or float16");
  const auto digest = golden->find("digest"), tensors = golden->find("tensors");
  if (digest == golden->end() || !digest->is_string() || tensors == golden->end() || !tensors->is_object()) {
    refuse("its manifest has no digests under /golden");
  }
  for (const auto& [_, recorded] : tensors->items()) {
    if (!recorded.is_string()) refuse("a digest under /golden/tensors is no text");
  }
  const auto attn = m.find("attn"), threads = m.find("threads");
  if (attn == m.end() || (*attn != "sdpa" && *attn != "eager"))
    refuse("its manifest's /attn is neither sdpa nor eager");
  if (threads == m.end() || !threads->is_number_unsigned()) refuse("its manifest's /threads is not a whole number");
  for (const char* key : {"torch", "transformers", "cpu_capability"}) {
    if (text_of(m, key).empty()) refuse("its manifest does not say torch, transformers and cpu_capability");
  }
  if (!trace->file()->canonical() || digest_of_manifest(*trace) != *digest) {
    throw LoadError(fmt::format("{}: its manifest was altered since it was recorded; get the file again", path));
  }
  const auto& points = trace->points();
  if (std::none_of(points.begin(), points.end(), [](const auto& p) { return level_of(p) == Level::sublayer; })) {
    refuse("it has no points of sublayers");
  }
  return trace;
}

RecordedThreads::RecordedThreads(const Trace& golden) : before_(at::get_num_threads()) {
  const auto threads = golden.manifest()["threads"].get<int64_t>();
  if (threads < 1 || threads > 1024)
    throw LoadError(fmt::format("manifest /threads: expected 1 to 1024, found {}", threads));
  at::set_num_threads(static_cast<int>(threads));
}

RecordedThreads::~RecordedThreads() { at::set_num_threads(before_); }

Level level_of_points(const Trace& trace) {
  auto highest = Level::layer;
  for (const auto& point : trace.points()) highest = std::max(highest, level_of(point));
  return highest;
}

}  // namespace lockstep
