// Where recorded tensors go, and which points a level asks for.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace lockstep {

/// layer: layer outputs, final norm, logits. sublayer: plus every sublayer's input and output, cos, sin and the four
/// states. all: plus every module and named value.
enum class Level { layer, sublayer, all };

/// The lowest level that holds `point`, from its name alone.
Level level_of(const std::string& point);

/// Receives what a run records. The tensor is the run's own: clone what must outlive the call.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void record(const std::string& point, const at::Tensor& value) = 0;
  /// What the run goes on with in place of the value just recorded, or null: the value itself. In its dtype and shape.
  virtual const at::Tensor* instead(const std::string&, const at::Tensor&) { return nullptr; }
};

}  // namespace lockstep
