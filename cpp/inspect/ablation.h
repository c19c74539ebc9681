// A forward in which some neurons are held: the change that alone settles what they cause.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "nn/recorder.h"

namespace lockstep::inspect {

/// One neuron of an MLP held at a value, at every position or at the last alone.
struct Held {
  int64_t layer, neuron;
  double value = 0;
  bool last_only = false;
};

/// Replaces elements of down_proj's input as the forward goes; records nothing.
class Ablation final : public Recorder {
 public:
  explicit Ablation(const std::vector<Held>& held) {
    for (const auto& h : held) by_point_[fmt::format("model.layers.{}.mlp.down_proj.input", h.layer)].push_back(h);
  }
  void record(const std::string&, const at::Tensor&) override {}
  const at::Tensor* instead(const std::string& point, const at::Tensor& value) override {
    const auto found = by_point_.find(point);
    if (found == by_point_.end()) return nullptr;
    changed_ = value.clone();
    for (const auto& h : found->second) {
      auto neuron = changed_.select(-1, h.neuron);  // [B, T]
      if (h.last_only) neuron = neuron.slice(1, -1);
      neuron.fill_(h.value);
    }
    return &changed_;
  }

 private:
  std::map<std::string, std::vector<Held>> by_point_;
  at::Tensor changed_;
};

}  // namespace lockstep::inspect
