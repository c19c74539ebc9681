// Lockstep for other C++ projects: load a model, run it, capture a point, hold tensors against a golden trace.
//
//   find_package(lockstep REQUIRED)
//   target_link_libraries(my_tests PRIVATE lockstep::lockstep)
//
// Every failure is a std::runtime_error whose text is one line: the thing, what was expected, what was found.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

class Mirror;
class Trace;
struct ReplayReport;

/// Capture point -> tensor: "model.layers.3.mlp.output", "model.layers.3.self_attn.input", "lm_head.output" (the logits
/// [B, T, V]), ...
using Captures = std::map<std::string, at::Tensor>;

/// How far a tensor is from what was recorded of Hugging Face.
struct Comparison {
  bool passes = false;  // identical, or every element within atol + rtol |recorded|; a NaN never passes
  std::string verdict;  // identical, agrees, deviates, dtype, shape, missing, non_finite
  double max_abs = 0;   // max |difference|; NaN where nothing could be subtracted
  std::string text;     // one sentence that names the point and says what was found
  explicit operator bool() const { return passes; }
};

/// What Hugging Face computed when `lockstep trace MODEL --golden -o FILE` ran.
class GoldenTrace {
 public:
  /// Opens the file and checks that its manifest is the one that was written.
  static GoldenTrace open(const std::string& path);

  /// float32, bfloat16 or float16: what the reference ran in.
  const std::string& dtype() const;
  /// The names of its forwards in order: "len65", "pad2", "split2_148.0", "split2_148.1", ...
  std::vector<std::string> forwards() const;
  /// The points that it promises, in execution order.
  const std::vector<std::string>& points() const;
  /// Of a forward: ids [B, T]; positions [B, T] or [3, B, T], or undefined; mask [B, past + T], or undefined.
  const at::Tensor& ids(const std::string& forward) const;
  const at::Tensor& positions(const std::string& forward) const;
  const at::Tensor& mask(const std::string& forward) const;
  /// The forward whose cache this one continues, or empty.
  const std::string& past(const std::string& forward) const;
  /// What was recorded, or undefined where it was not.
  at::Tensor recorded(const std::string& forward, const std::string& point) const;

  /// Holds `mine`, from any engine, against what was recorded.
  Comparison compare(const std::string& forward, const std::string& point, const at::Tensor& mine, double atol = 1e-5,
                     double rtol = 0) const;

 private:
  friend class Model;
  friend ReplayReport replay(const std::string&, const GoldenTrace&, std::optional<double>);
  explicit GoldenTrace(std::shared_ptr<const Trace> trace) : trace_(std::move(trace)) {}
  std::shared_ptr<const Trace> trace_;
};

/// The C++ mirror of a Hugging Face checkpoint.
class Model {
 public:
  /// Opens a checkpoint folder strictly; every parameter is the file's tensor in `dtype`: float32, bfloat16, float16.
  static Model open(const std::string& folder, const std::string& dtype = "float32");
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  /// One forward without a cache: ids [B, T] int64 -> the captures of a level: layer, sublayer or all.
  Captures run(const at::Tensor& ids, const std::string& points = "sublayer");
  /// A forward of the trace as it was recorded: its inputs, attention and threads, after the forwards that it
  /// continues.
  Captures run(const GoldenTrace& golden, const std::string& forward, const std::string& points = "sublayer");

 private:
  explicit Model(std::unique_ptr<Mirror> mirror);
  std::unique_ptr<Mirror> mirror_;
};

/// What replay() found.
struct ReplayReport {
  bool passes = false;
  std::string verdict;  // the worst of all points
  std::string text;     // what lockstep-native verify prints
  std::string json;     // what it writes with --json
  explicit operator bool() const { return passes; }
};

/// The whole of `lockstep-native verify FOLDER --golden FILE`: digests of every tensor, then every promised point of
/// every forward. With no `atol` only the same bits pass, or, on another torch or CPU, what the local check calls
/// rounding.
ReplayReport replay(const std::string& folder, const GoldenTrace& golden, std::optional<double> atol = std::nullopt);

}  // namespace lockstep
