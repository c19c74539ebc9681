// A trace: capture point -> tensor for one or more named forwards, with what they were run on. In a file it is a
// safetensors file whose tensors are named <forward>/<point>, with the manifest as JSON under the metadata key
// `lockstep`.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace lockstep {

/// The newest manifest this code reads and writes.
constexpr int64_t kTraceVersion = 1;

/// One forward of a trace. Undefined tensors are the manifest's null.
struct TraceForward {
  std::string name;
  at::Tensor ids;        // [B, T] int64
  at::Tensor positions;  // [B, T] or [3, B, T] int64
  at::Tensor mask;       // [B, past + T] int64 of 0 and 1
  std::string past;      // the forward whose cache this one continues, or empty
};

class Trace {
 public:
  /// In memory. `dtype` float32, bfloat16, float16 or float64; `variant` the release of transformers whose layouts the
  /// points have.
  Trace(std::string dtype, std::string attn, std::string variant, std::vector<TraceForward> forwards);
  /// Reads a file. Raises LoadError naming what is wrong: not safetensors, no manifest, an unknown newer version, a bad
  /// key or forward.
  static Trace open(const std::string& path);

  /// Adds a point; a second firing in one forward is kept as a count (it is then promised no more).
  void add(const std::string& forward, const std::string& point, const at::Tensor& value);

  const std::string& dtype() const { return dtype_; }
  const std::string& attn() const { return attn_; }
  const std::string& variant() const { return variant_; }
  const nlohmann::json& manifest() const { return manifest_; }
  const std::vector<TraceForward>& forwards() const { return forwards_; }
  const TraceForward& forward(const std::string& name) const;
  bool has_forward(const std::string& name) const { return index_.count(name) > 0; }
  /// Tokens cached before a forward begins, and whether it runs with a cache at all.
  int64_t past(const std::string& forward) const;
  bool cached(const std::string& forward) const;

  /// Promised points in execution order.
  const std::vector<std::string>& points() const { return points_; }
  /// Does the trace promise `point` in `forward`? A state is promised only where the forward has a cache.
  bool promised(const std::string& forward, const std::string& point) const;
  /// The tensor, or undefined if it is not there (promised and undefined is `missing`).
  at::Tensor tensor(const std::string& forward, const std::string& point) const;
  /// Tensors of the file that the manifest does not promise, `<forward>/<point>`.
  std::vector<std::string> unpromised() const;
  /// Points that fired more than once in a forward, `<forward>/<point>`.
  const std::vector<std::string>& repeated() const { return repeated_; }
  void check_unchanged() const;
  /// The file that it was read from, or null.
  const SafetensorsFile* file() const { return file_ ? &*file_ : nullptr; }

 private:
  Trace() = default;
  void index_forwards();
  void promise(const std::string& point);

  std::string dtype_, attn_ = "sdpa", variant_ = "5.18";
  nlohmann::json manifest_;
  std::vector<TraceForward> forwards_;
  std::map<std::string, size_t> index_;
  std::vector<std::string> points_;
  std::map<std::string, bool> everywhere_;     // point -> promised in every forward (else only as `exactly_`)
  std::map<std::string, at::Tensor> tensors_;  // in memory
  std::map<std::string, bool> exactly_;        // <forward>/<point>
  std::vector<std::string> repeated_;
  std::optional<SafetensorsFile> file_;
};

/// Is the point a state of the cache (`@key_cache`, ...)?
bool is_state(const std::string& point);

}  // namespace lockstep
