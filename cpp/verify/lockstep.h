// Second leg: one forward of the mirror that keeps step with the reference. Every capture point is compared as soon as
// both sides have produced it, and freed.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/metrics.h"
#include "models/mirror.h"
#include "nn/run.h"

namespace lockstep {

struct ForwardSpec {
  std::string name;
  Inputs inputs;
  std::shared_ptr<Cache> cache;  // null: without one
};

class LockstepForward final : private Recorder {
 public:
  /// `mirror` is bound already. Raises InputError from the first step if the inputs do not fit it.
  LockstepForward(Mirror& mirror, const Variant& variant, Attn attn, Level level, const Gate& gate, ForwardSpec spec);

  /// One capture of the reference. `keep` false: the caller promises that the tensor does not change until advance()
  /// has run past its point; else it is cloned.
  void reference(const std::string& point, const at::Tensor& value, bool keep);
  /// Runs the mirror up to and including decoder layer `index`.
  void advance(int64_t index);
  /// Runs the mirror to the end.
  void complete();
  /// The logits that the reference returns, which may not be what its lm_head gave: they are judged too.
  void returned_logits(const at::Tensor& logits);

  /// {points: [{point, input, shape, dtype, max_ulp, max_abs, rel_l2, cosine, worst_index, verdict, ...}],
  ///  logits: {input, kl, top1_agreement, top3: {reference, mirror}}, fired: [{point, times}] that are not once}
  nlohmann::json finish();
  double mirror_seconds() const { return seconds_; }

 private:
  void step();  // the embedding, one layer, or norm and head. Raises InputError if the mirror cannot run it
  void record(const std::string& point, const at::Tensor& value) override;
  void compare_point(const std::string& point, const at::Tensor& reference, const at::Tensor& candidate);
  void compare_head(const at::Tensor& reference, const at::Tensor& candidate);

  Mirror& mirror_;
  const Gate gate_;
  ForwardSpec spec_;
  Run run_;
  CausalLM::State state_;
  int64_t next_ = -1;  // -1: not begun; 0..L: the next layer; L + 1: done
  double seconds_ = 0;
  std::map<std::string, at::Tensor> pending_;  // reference's, waiting for the mirror
  std::vector<std::string> arrived_;           // reference's points in the order they came
  std::map<std::string, at::Tensor> early_;    // mirror's, whose reference has not come
  std::map<std::string, int64_t> fired_;       // by the reference
  std::vector<std::string> order_;             // the mirror's points in execution order
  std::map<std::string, nlohmann::json> results_;
  nlohmann::json logits_;
  at::Tensor mirror_logits_;  // kept until the reference has returned its own
};

}  // namespace lockstep
