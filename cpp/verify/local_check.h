// The local check: the truth of one sublayer on a side's own recorded input against that side's own output. It finds
// every faulty sublayer at once, from recordings alone.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/metrics.h"
#include "io/trace.h"
#include "verify/evaluator.h"

namespace lockstep {

/// How many noise floors an error may reach. Measured: right, independent engines stay within 1.3 in float32 (MLX on
/// SmolLM2, worst sublayer) and 2.36 in bfloat16 (MLX on the embedded checkpoint, against the first floor alone).
constexpr double kBoundFloat32 = 2.0, kBoundHalf = 2.5;
/// How often a suspect's roundings are drawn in half precision. With none, MLX in bfloat16 reaches 3.7 floors at a
/// first token of the embedded checkpoint, with three less than 1.3.
constexpr int kDraws = 3;
double bound_of(at::ScalarType dtype);
/// Half the unit roundoff: no floor is below it.
double least_floor(at::ScalarType dtype);

/// What has been evaluated, for the report.
struct Cost {
  int64_t truth = 0, floor = 0, index = 0, values = 0, hypotheses = 0, len130 = 0, shared = 0;
};

/// One sublayer on one side's recordings of one forward. Sides with equal input bits share one.
struct Evaluation {
  Given given;
  Layout layout;
  const TraceForward* forward = nullptr;
  const Trace* trace = nullptr;  // whose recordings `forced` went on with
  Values truth, run, index;      // float64; the run's dtype, HF's order; index order (only of a suspect)
  Values forced_truth, forced_run, forced_index;  // on the nearest promised values before
  std::vector<Values> draws, forced_draws;        // index order in half precision, its roundings drawn
  bool indexed = false, with_values = false;
  LayerCache after;  // the states that the truth leaves
};

/// One point of one side in one forward, judged.
struct Judged {
  std::string point, forward;
  bool inner = false;  // judged on the nearest promised values, not on the sublayer's input
  Verdict verdict = Verdict::rounding;
  double error = 0;  // worst attended row, relative L2 to the truth
  double floor = 0;  // of the run's dtype on the same input
  int64_t row = -1, rows = 0, skipped = 0;
  int64_t inherited_nan = 0;  // attended rows whose input already held a NaN: nothing can be said of them
  std::string note;
  double ratio() const { return floor > 0 ? error / floor : 0; }
};

struct SideResult {
  std::string side;
  std::vector<std::shared_ptr<Evaluation>> evaluations;  // one per forward that recorded the input
  std::vector<Judged> judged;
  bool faulty() const;
};

class LocalCheck {
 public:
  /// On the checkpoint in `folder`, for sides that ran in `dtype`. `len130` is the forward whose floor counts
  /// everywhere.
  LocalCheck(const std::string& folder, const std::string& dtype, const std::string& attn, TraceForward len130);

  /// Sides are judged in the order in which they are added. Raises InputError for forwards the model cannot run.
  void add_side(const std::string& name, std::shared_ptr<const Trace> trace);

  const std::vector<Sublayer>& sublayers() const { return sublayers_; }
  const Evaluator& truth() const { return truth_; }
  Evaluator& truth() { return truth_; }
  at::ScalarType dtype() const { return dtype_; }
  /// Judges one sublayer on every side and forward. The index-order run is made where the first floor does not suffice.
  std::vector<SideResult> judge(const Sublayer& sublayer);
  /// Judges its inner values too, each on the nearest promised values before it. After judge() of the same sublayer.
  void look_inside(const Sublayer& sublayer, std::vector<SideResult>& results);
  /// The context of a forward, by the trace that holds it: the truth's, and that of a run in the sides' dtype.
  const Context& truth_context(const Trace* trace, const std::string& forward) const;
  const Context& run_context(const Trace* trace, const std::string& forward) const;
  Evaluator& run() { return run_; }
  /// The floor of a point as judge() used it last.
  double floor_of(const Evaluation& e, const std::string& point, bool inner, bool with_index);
  /// Makes the index-order run of an evaluation, once.
  void in_index_order(const Sublayer& sublayer, Evaluation& e) { evaluate_index(sublayer, e); }
  Cost& cost() { return cost_; }

 private:
  struct Frame {
    Context truth, run;
  };
  const Frame& frame(const Trace* trace, const std::string& forward) const;
  struct Side {
    std::string name;
    std::shared_ptr<const Trace> trace;
    std::map<std::string, Frame> frames;
    std::map<std::string, LayerCache> after;  // of the present sublayer
  };

  void add_frames(Side& side);
  Given gather(const Sublayer& sublayer, const Side& side, const TraceForward& forward) const;
  std::shared_ptr<Evaluation> evaluate(const Sublayer& sublayer, Side& side, const TraceForward& forward,
                                       const std::vector<std::shared_ptr<Evaluation>>& others);
  void evaluate_values(const Sublayer& sublayer, Evaluation& e);
  const Side& side_of(const Evaluation& e) const;
  void evaluate_index(const Sublayer& sublayer, Evaluation& e);
  Judged judge_point(const Sublayer& sublayer, const Side& side, Evaluation& e, const std::string& point, bool inner);

  const at::ScalarType dtype_;
  Evaluator truth_, run_;
  const Arithmetic exact_{at::kDouble, Order::plain};
  const Arithmetic in_order_{at::kFloat, Order::index};
  std::vector<Sublayer> sublayers_;
  std::vector<Side> sides_;
  Side floor_side_;
  std::shared_ptr<Evaluation> floor_;  // of len130, for the present sublayer
  Cost cost_;
};

}  // namespace lockstep
