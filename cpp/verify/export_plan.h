// What an export writes, derived from the source and the options alone: `export` writes it, `check --source` derives it
// once more.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/mirror.h"

namespace lockstep {

/// What an export changes; by default nothing.
struct ExportOptions {
  std::optional<at::ScalarType> dtype;     // of the model's parameters; what the family ignores stays as it is
  std::optional<uint64_t> max_shard_size;  // bytes of tensors in one file; else as many files as the source has
  bool text_only = false;                  // leaves out what the family ignores
};

/// "5GB", "500MB", "1GiB", "4096" -> bytes; B, K, M, G, T as transformers reads them: KB is 1000, KiB 1024. Raises
/// InputError.
uint64_t parse_size(const std::string& text);

struct PlannedTensor {
  TensorInfo info;  // as it is written; offsets are the writer's
  std::string source_dtype, source_file;
  bool converted() const { return info.dtype != source_dtype; }
};

struct ExportPlan {
  ExportOptions options;
  std::map<std::string, std::vector<PlannedTensor>> shards;  // file name -> tensors
  std::vector<std::string> tensors_left_out;                 // by text_only
  std::vector<std::string> files;                            // carried byte for byte beside the weights
  std::vector<std::string> files_left_out;
  std::string config;  // the text of config.json: the source's own, or with its dtype changed
  std::string index;   // of model.safetensors.index.json; empty if there is one shard
};

inline constexpr const char* kManifest = "lockstep.manifest.json";
inline constexpr const char* kReport = "lockstep.report.json";

/// Raises LoadError naming every tensor that the dtype would make infinite.
ExportPlan plan_export(const Mirror& source, const ExportOptions& options);

/// Gives `take` the bytes that a planned tensor is written with, in blocks -> elements whose value the conversion
/// changed.
int64_t exported_bytes(const Checkpoint& source, const PlannedTensor& tensor,
                       const std::function<void(const char*, size_t)>& take);

/// What the manifest states of a tensor in the file `shard`: SHA-256 of its bytes there and in the source, and of the
/// source's file; elements that the conversion changed.
nlohmann::json stated_tensor(const PlannedTensor& tensor, const std::string& shard, const std::string& sha256,
                             const std::string& source_sha256, const std::string& file_sha256, int64_t changed);

}  // namespace lockstep
