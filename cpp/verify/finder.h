// One side's result for one sublayer, and what each hypothesis makes of it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "verify/cause.h"

namespace lockstep {

constexpr double kLeastRows = 8;   // effective rows of a projection
constexpr double kControl = 0.25;  // part of an estimate that right arithmetic may show by itself
constexpr double kUnits = 4;       // a number of the config this near to the config's is the config's

/// The spacing of a dtype's numbers at 1.
double unit_of(at::ScalarType dtype);
/// Is a part of the estimate there in right arithmetic too? Then this run cannot tell; also where that is NaN.
bool shown_by_right_arithmetic(double alpha);

/// One point of one forward: candidate, truth, and what a hypothesis makes of it.
struct Pooled {
  Evaluation* e;
  std::string point;
  bool inner;
  at::Tensor candidate, truth, run;  // [R, n], attended rows of a nonzero truth; run: right arithmetic in the dtype
  at::Tensor keep;
  double floor;
};

class Finder {
 public:
  Finder(LocalCheck& check, const Sublayer& sublayer, const SideResult& side, const Trace& trace);

  bool empty() const { return pool_.empty(); }
  /// Projects onto one hypothesis; one that has a number in it is fitted.
  Tried attempt(const Hypothesis& h);
  /// Does right arithmetic in index order show a part of the same error? Then this run cannot tell.
  bool seen_in_index_order(const Tried& t);
  /// The strongest single weight of the sublayer's linear maps, or of a norm.
  std::optional<Tried> single_weight();

 private:
  struct Single {
    std::string parameter;
    std::vector<int64_t> index;
    double offset = 0, error = 0;
    double held = 0;  // an offset that the rounding of what is multiplied hides is none
  };

  Evaluation* evaluation(const std::string& forward) const;
  void read(Tried& t) const;
  void settle(Tried& t, bool rounding) const;
  /// One evaluation under a change: by the truth's arithmetic (Order::plain), or as a run in the sides' dtype would
  /// compute it, in HF's order or index order.
  /// `left` holds the states that earlier forwards leave under the change: what follows them begins there, unless the
  /// candidate shows states of its own.
  Values under(const Change& change, bool table, const Evaluation& e, Order order,
               std::map<std::string, LayerCache>& left);
  /// What a run under a change, in this order of summation, loses against `kept` (t_h, like pool_): the worst row of
  /// all inputs, by point.
  void raise_floors(const Change& change, bool table, Order order, const std::vector<at::Tensor>& kept,
                    std::map<std::string, double>& floors);
  bool shows_states(const std::string& forward) const;
  at::Tensor rows_under(const Values& values, const Pooled& p) const;
  /// Fills the projection; true if the candidate is within the bound of t_h everywhere.
  bool project(const Hypothesis& h, std::optional<double> value, Projection& out);
  /// The config's value of the hypothesis' number, by asking one evaluation for it; NaN if it is used nowhere here.
  double config_of(const Hypothesis& h);
  /// A hypothesis with a number: go to the estimate until alpha is within 0.1 of 1.
  void fit(const Hypothesis& h, Tried& t);
  std::optional<Tried> weight_of_a_map();
  std::optional<Tried> weight_of_a_norm();
  /// With the offset put in, the rest must be rounding.
  Tried with_offset(const Single& single);

  LocalCheck& check_;
  const Sublayer& s_;
  const SideResult& side_;
  const Trace& trace_;
  std::vector<Pooled> pool_;
  bool inner_ = false;   // inner values are there, and each is judged by itself
  double floor_ = 0;     // the largest of the pool
  double accepted_ = 0;  // the largest that the last projection was held to
};

}  // namespace lockstep
