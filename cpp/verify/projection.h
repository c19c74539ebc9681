// Cause by projection: the candidate's error e = c - t laid on what a hypothesis would change, d = t_h - t.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

namespace lockstep {

/// Rows of all inputs of a sublayer, pooled; each row divided by its truth's norm.
class Projection {
 public:
  /// All [R, n]; only attended rows of a nonzero truth may be given. `run` is right arithmetic in the candidate's
  /// dtype. `source` says later whose rows these are.
  void add(const at::Tensor& candidate, const at::Tensor& truth, const at::Tensor& hypothesis, const at::Tensor& run,
           size_t source = 0);

  /// How far to go on from here, in units of the last step, so that the rest vanishes along what that step changed:
  /// <e - d, d - d'> / |d - d'|^2, with d' of the hypothesis before.
  double further(const Projection& before) const;

  /// alpha of right arithmetic. Rounding is not quite unbiased (1 + w rounds alike in every row): what a right run
  /// shows too is no fault.
  double control() const;
  /// alpha of another error: per source [R, n], rows divided by their truth's norm; undefined counts as none.
  double alpha_of(const std::function<at::Tensor(size_t)>& error) const;
  double alpha() const;           // <e, d> / <d, d>
  double alpha_error() const;     // jackknife over rows
  double effective_rows() const;  // (sum w)^2 / sum w^2, w = |d|^2
  /// |d| as the root of its mean square over rows: one row of a small truth says nothing about the rest.
  double effect() const;
  /// Rows with |d| over `size`.
  int64_t rows_over(double size) const;
  double left() const { return left_; }    // sum of |e - d|^2
  double error() const { return error_; }  // sum of |e|^2
  /// d is 0 everywhere: the same function on these inputs.
  bool same() const { return largest_ == 0; }
  /// |cos| of two hypotheses' d over the same rows.
  static double collinearity(const Projection& a, const Projection& b);

 private:
  std::vector<double> w_, p_;      // per row: <d, d>, <e, d>
  std::vector<at::Tensor> d_, e_;  // kept while the hypothesis is looked at
  std::vector<size_t> sources_;
  double control_ = 0;  // sum of <run - t, d>
  double largest_ = 0, left_ = 0, error_ = 0;
};

}  // namespace lockstep
