// Evaluates one sublayer of a checkpoint by itself, on inputs that somebody recorded: as the truth, in the run's dtype,
// in index order, or under a hypothesis.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/trace.h"
#include "models/mirror.h"
#include "nn/run.h"
#include "verify/sublayers.h"

namespace lockstep {

/// What an evaluation recorded: point -> tensor, in execution order. Where `forced` is set, every promised point inside
/// the sublayer is computed and recorded, and the evaluation goes on with the trace's own tensor, so that each value is
/// judged on the nearest promised values before it.
class Values final : public Recorder {
 public:
  Values() = default;
  Values(const Trace& forced, std::string forward) : forced_(&forced), forward_(std::move(forward)) {}
  void record(const std::string& point, const at::Tensor& value) override;
  const at::Tensor* instead(const std::string& point, const at::Tensor& value) override;

  std::vector<std::string> order;
  std::map<std::string, at::Tensor> at;

 private:
  const Trace* forced_ = nullptr;
  std::string forward_;
  at::Tensor replacement_;
};

/// What a sublayer is given in one forward, as recorded.
struct Given {
  at::Tensor x;                   // hidden states; undefined: never recorded
  std::vector<at::Tensor> terms;  // of a layer: what its sums are made of (see Evaluator::sums)
  at::Tensor cos, sin;            // undefined: the evaluation's own
  LayerCache past;                // states of the forward that this one continues
  bool cached = false;
  int64_t past_tokens = 0;
};
bool same_bits(const Given& a, const Given& b);

/// How a side ran: the release whose layouts its points have, and its attention.
struct Layout {
  std::string variant = "5.18";
  Attn attn = Attn::sdpa;
  bool operator==(const Layout&) const = default;
};

/// Changes a sublayer's parameters, by full name, in place.
using WeightEdit = std::function<void(std::map<std::string, at::Tensor>&)>;

class Evaluator {
 public:
  /// A model of its own on the checkpoint in `folder`, whose weights come in `dtype`, one sublayer's at a time.
  Evaluator(const std::string& folder, at::ScalarType dtype);

  const CausalLM& model() const { return mirror_->model(); }
  const Mirror& mirror() const { return *mirror_; }
  /// Gives a sublayer its weights; drops those of the one before.
  void bind(const Sublayer& sublayer);
  /// Masks, and the evaluation's own cos and sin, of a forward. Raises InputError for ids, positions or a mask that the
  /// model cannot take.
  Context context(const TraceForward& forward, int64_t past, bool cached, const Layout& layout,
                  const Arithmetic& arithmetic, Values* values = nullptr);
  /// One evaluation of `sublayer` -> `values`; `after` receives the states it leaves. `context` is this evaluator's.
  void run(const Sublayer& sublayer, const TraceForward& forward, const Given& given, const Context& context,
           const Layout& layout, const Arithmetic& arithmetic, Values& values, LayerCache* after = nullptr);
  /// The whole model in this evaluator's dtype on one forward with a new cache, every point.
  Trace whole(const TraceForward& forward, const std::string& dtype, const std::string& attn,
              const std::string& variant);
  /// While the function runs, parameters of the bound sublayer have the edit's values.
  void edited(const WeightEdit& edit, const std::function<void()>& function);
  /// Does the edit change a parameter of the bound sublayer?
  bool changes(const WeightEdit& edit) const;

 private:
  void sums(const Sublayer& layer, const Given& given, const Arithmetic& arithmetic, Values& values);
  std::unique_ptr<Mirror> mirror_;
  const at::ScalarType dtype_;
  std::vector<std::string> bound_;
};

}  // namespace lockstep
