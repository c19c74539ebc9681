// A Hugging Face checkpoint folder: config.json, and safetensors in one file or in shards that an index names.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace lockstep {

/// The two names that a tied head makes one.
inline constexpr const char* kHead = "lm_head.weight";
inline constexpr const char* kEmbedding = "model.embed_tokens.weight";

/// What a family does with tensors that it does not compute with. The list is explicit and printed with counts.
struct IgnoredNames {
  std::vector<std::string> prefixes;
  std::vector<std::string> suffixes;
  /// The rule that `source` falls under ("mtp.*"), or empty.
  std::string rule(const std::string& source) const;
};

/// A parameter that the mirror asks for.
struct WantedTensor {
  std::string name;
  std::vector<int64_t> shape;
};

/// One line of the listing of names: a tensor of the files beside the parameter that it is.
struct NameRow {
  std::string source;     // name in the files; empty if missing
  std::string parameter;  // name in the mirror; empty if ignored or unexpected
  std::vector<int64_t> shape;
  std::string dtype, file;
  std::string status;   // ok, tied, ignored, missing, unexpected, duplicate, shape, dtype
  std::string problem;  // one sentence, empty where the status is fine
};

/// Which tensor of the files each parameter of the mirror is.
struct Match {
  std::map<std::string, std::string> source;  // mirror name -> name in the files
  std::map<std::string, int64_t> ignored;     // rule -> count
  bool tied = false;                          // lm_head.weight is model.embed_tokens.weight
  std::vector<std::string> notes;
};

class Checkpoint {
 public:
  /// Opens every shard and holds the index against them, both ways. Raises LoadError with all problems at once.
  static Checkpoint open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const nlohmann::json& config() const { return config_; }
  const std::vector<std::string>& notes() const { return notes_; }
  std::vector<std::string> names() const;  // sorted
  bool has(const std::string& name) const { return where_.count(name) > 0; }
  /// Of a name for which has() is true.
  const TensorInfo& info(const std::string& name) const;
  std::string file_name(const std::string& name) const;
  at::Tensor tensor(const std::string& name) const;  // in the file's dtype, a view where its bytes are aligned
  std::string_view bytes(const std::string& name) const;
  std::vector<std::string> file_names() const;  // of the safetensors files in use

  /// Every tensor of the files and every wanted parameter, with what is wrong, sorted by name. Does not raise.
  std::vector<NameRow> rows(const std::vector<WantedTensor>& wanted, const IgnoredNames& ignored, bool tie) const;

  /// Strict in the sense of load_state_dict: missing, unexpected, duplicate, wrong shape and wrong dtype are all found
  /// and all named in one LoadError. Prefixes `model.` and `model.language_model.` mean the same. `tie` is the config's
  /// flag: a tied head must be absent or hold the embedding's bytes.
  Match match(const std::vector<WantedTensor>& wanted, const IgnoredNames& ignored, bool tie) const;

  /// SHA-256 of every tensor's bytes, hex, by name; as sha256_each(), which says what `given_up` is.
  std::map<std::string, std::string> digests(const std::atomic<bool>* given_up = nullptr) const;
  /// Raises LoadError if a file is no longer what was opened.
  void check_unchanged() const;

 private:
  bool same_tensor(const std::string& a, const std::string& b) const;
  std::string folder_;
  nlohmann::json config_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, size_t> where_;  // tensor -> shard
  std::vector<std::string> notes_;
};

/// One digest for a set of tensors: SHA-256 over "name dtype shape sha256" lines, sorted by name.
std::string digest_of(const Checkpoint& checkpoint, const std::map<std::string, std::string>& digests);

}  // namespace lockstep
