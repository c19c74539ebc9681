// Rows, errors, projection and hypotheses by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"
#include "nn/aligned.h"
#include "verify/cause.h"
#include "verify/hypotheses.h"
#include "verify/projection.h"
#include "verify/rows.h"
#include "verify/sublayers.h"

namespace lockstep {
namespace {

TraceForward forward(int64_t B, int64_t T) { return {"f", at::zeros({B, T}, at::kLong), {}, {}, ""}; }

TEST(Rows, ATokenIsARowWhateverTheLayout) {
  const auto f = forward(2, 3);
  EXPECT_EQ(rows_of("model.layers.0.mlp.output", at::zeros({2, 3, 5}), f, "5.18").values.size(0), 6);
  EXPECT_EQ(rows_of("model.layers.0.self_attn@q_rope", at::zeros({2, 4, 3, 5}), f, "5.18").values.size(0), 6);
  EXPECT_EQ(rows_of("model.layers.0.linear_attn@q_l2", at::zeros({2, 3, 4, 5}), f, "5.10").values.size(0), 6);
  EXPECT_EQ(rows_of("model.layers.0.linear_attn@q_l2", at::zeros({2, 4, 3, 5}), f, "5.18").values.size(0), 6);
  EXPECT_EQ(rows_of("model.layers.0.linear_attn@conv", at::zeros({2, 7, 3}), f, "5.18").values.size(0), 6);
  EXPECT_EQ(rows_of("model.layers.0.linear_attn.norm.output", at::zeros({24, 5}), f, "5.18").values.size(0), 6);
  EXPECT_EQ(rows_of("model.layers.0.linear_attn@recurrent_state", at::zeros({2, 4, 5, 6}), f, "5.18").values.size(0),
            8);
  EXPECT_EQ(rows_of("model.layers.0.linear_attn@conv_state", at::zeros({2, 7, 4}), f, "5.18").values.size(0), 14);
  EXPECT_EQ(rows_of("model.layers.0.self_attn@key_cache", at::zeros({2, 4, 9, 5}), f, "5.18").values.size(0), 72);
  EXPECT_EQ(rows_of("model.rotary_emb@inv_freq", at::zeros({8}), f, "5.18").values.size(0), 1);
}

TEST(Rows, OnlyAttendedPositionsCount) {
  auto f = forward(1, 3);
  f.mask = at::tensor({0, 1, 1, 1}, at::kLong).view({1, 4});  // one cached pad, three tokens
  EXPECT_TRUE(rows_of("x.output", at::zeros({1, 3, 5}), f, "5.18").attended.all().item<bool>());
  const auto cache = rows_of("x@key_cache", at::zeros({1, 1, 4, 5}), f, "5.18").attended;
  EXPECT_FALSE(cache[0].item<bool>());
  EXPECT_TRUE(cache[1].item<bool>());
}

TEST(RowErrors, ZeroMustBeZeroAndNaNStays) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto truth = at::tensor({3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0}, at::kDouble).view({4, 2});
  const auto candidate = at::tensor({3.0, 4.5, 0.0, 0.0, 1e-30, 0.0, nan, 0.0}, at::kDouble).view({4, 2});
  const auto e = row_errors(candidate, truth);
  EXPECT_DOUBLE_EQ(e[0].item<double>(), 0.1);
  EXPECT_EQ(e[1].item<double>(), 0);
  EXPECT_TRUE(std::isinf(e[2].item<double>()));
  EXPECT_TRUE(std::isnan(e[3].item<double>()));
}

TEST(Projection, OneIsTheFaultAndZeroIsNot) {
  at::manual_seed(1);
  const auto truth = at::randn({50, 20}, at::kDouble), change = 1e-3 * at::randn({50, 20}, at::kDouble);
  const auto noise = 1e-6 * at::randn({50, 20}, at::kDouble);
  Projection is, is_not, nothing;
  is.add(truth + change + noise, truth, truth + change, truth);
  is_not.add(truth + noise, truth, truth + change, truth + change);
  nothing.add(truth + noise, truth, truth, truth);
  EXPECT_LT(is.alpha_error(), 1e-4);
  EXPECT_NEAR(is.alpha(), 1, 4 * is.alpha_error());
  EXPECT_NEAR(is_not.alpha(), 0, 4 * is_not.alpha_error());
  EXPECT_GT(is.effective_rows(), 20);
  EXPECT_TRUE(nothing.same());
  EXPECT_EQ(is.control(), 0);
  EXPECT_NEAR(is_not.control(), 1, 1e-9);
  EXPECT_NEAR(Projection::collinearity(is, is_not), 1, 1e-12);
}

TEST(Projection, OneRowTellsNothing) {
  const auto truth = at::ones({1, 4}, at::kDouble);
  Projection p;
  p.add(truth * 1.1, truth, truth * 1.1, truth);
  EXPECT_TRUE(std::isinf(p.alpha_error()));
  EXPECT_LT(p.effective_rows(), 8);
}

TEST(Hypotheses, HaveOneNameEachAndAreAboutSomething) {
  std::set<std::string> names;
  for (const auto& h : hypotheses()) {
    EXPECT_TRUE(names.insert(h.name).second) << h.name;
    EXPECT_FALSE(h.kinds.empty()) << h.name;
    EXPECT_EQ(h.parameter.empty(), !h.first_try) << h.name;
  }
  EXPECT_GE(names.size(), 60u);
  EXPECT_THROW(hypothesis("no such thing"), InputError);
}

TEST(Sublayers, HoldWhatIsInside) {
  const Sublayer layer{"model.layers.1", Kind::layer, 1, {}};
  EXPECT_TRUE(layer.holds("model.layers.1.output"));
  EXPECT_TRUE(layer.holds("model.layers.1.mlp.output"));
  EXPECT_FALSE(layer.holds("model.layers.10.output"));
}

TEST(Aligned, CopiesWhatNoAllocatorWouldPutThere) {
  const auto whole = at::arange(40, at::kFloat);
  const auto odd = whole.slice(0, 1, 33).view({4, 8});
  const auto moved = aligned(odd);
  EXPECT_TRUE(at::equal(moved, odd));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(moved.const_data_ptr()) % 64, 0u);
  EXPECT_NE(moved.const_data_ptr(), odd.const_data_ptr());
  EXPECT_EQ(aligned(whole).const_data_ptr(), whole.const_data_ptr());
  EXPECT_FALSE(aligned(at::Tensor()).defined());
}

}  // namespace
}  // namespace lockstep
