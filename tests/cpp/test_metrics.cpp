// Comparison fails closed: NaN, infinities, signed zeros, shapes and dtypes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/metrics.h"

namespace lockstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
at::Tensor tensor(std::vector<double> v, at::ScalarType dtype = at::kFloat) {
  return at::tensor(v, at::kDouble).to(dtype);
}

TEST(Compare, EqualBitsAreIdentical) {
  const auto m = compare(tensor({1, 2, 3}), tensor({1, 2, 3}), {});
  EXPECT_EQ(m.verdict, Verdict::identical);
  EXPECT_EQ(m.max_ulp, 0);
  EXPECT_EQ(m.cosine, 1);
}

TEST(Compare, CountsUlpsInTheTensorsOwnDtype) {
  const float next = std::nextafter(1.0f, 2.0f);
  EXPECT_EQ(compare(tensor({1}), tensor({next}), {}).max_ulp, 1);
  EXPECT_EQ(compare(tensor({1}), tensor({next}), {}).verdict, Verdict::agrees);
  EXPECT_EQ(compare(tensor({1}, at::kBFloat16), tensor({1.0078125}, at::kBFloat16), {}).max_ulp, 1);
  EXPECT_EQ(compare(tensor({1}, at::kBFloat16), tensor({1.0078125}, at::kBFloat16), {}).verdict, Verdict::deviates);
  EXPECT_EQ(compare(tensor({1}, at::kHalf), tensor({1.0009765625}, at::kHalf), {}).max_ulp, 1);
  const auto across = compare(tensor({-std::numeric_limits<float>::denorm_min()}),
                              tensor({std::numeric_limits<float>::denorm_min()}), {});
  EXPECT_EQ(across.max_ulp, 2);
}

TEST(Compare, SignedZerosAgreeAtZeroUlp) {
  const auto m = compare(tensor({0.0}), tensor({-0.0}), {});
  EXPECT_EQ(m.verdict, Verdict::agrees);
  EXPECT_EQ(m.max_ulp, 0);
}

TEST(Compare, NanIsNonFiniteOnEitherSideAndOnBoth) {
  for (const auto& [r, c] : {std::pair(tensor({1, 2}), tensor({1, kNan})), std::pair(tensor({1, kNan}), tensor({1, 2})),
                             std::pair(tensor({1, kNan}), tensor({1, kNan}))}) {
    const auto m = compare(r, c, {kInf, 0});
    EXPECT_EQ(m.verdict, Verdict::non_finite);
    EXPECT_EQ(m.worst_index, std::vector<int64_t>{1});
  }
  EXPECT_TRUE(compare(tensor({kNan}), tensor({kNan}), {}).reference_non_finite);
}

TEST(Compare, EqualInfinitiesAreEqualOthersDeviate) {
  EXPECT_EQ(compare(tensor({kInf, 1}), tensor({kInf, 1}), {}).verdict, Verdict::identical);
  EXPECT_EQ(compare(tensor({kInf, 1}), tensor({kInf, std::nextafter(1.0f, 2.0f)}), {}).verdict, Verdict::agrees);
  EXPECT_EQ(compare(tensor({kInf}), tensor({-kInf}), {}).verdict, Verdict::deviates);
  EXPECT_EQ(compare(tensor({kInf}), tensor({1}), {}).verdict, Verdict::deviates);
  EXPECT_EQ(compare(tensor({kInf}), tensor({1}), {1e-5, 1e-3}).verdict, Verdict::deviates);
  EXPECT_EQ(compare(tensor({kInf}), tensor({-kInf}), {1e-5, 1e-3}).verdict, Verdict::deviates);
}

TEST(Compare, ShapesNeverBroadcastAndDtypesNeverPromote) {
  EXPECT_EQ(compare(at::zeros({1, 3}), at::zeros({2, 3}), {}).verdict, Verdict::shape);
  EXPECT_EQ(compare(at::zeros({3}), at::zeros({1, 3}), {}).verdict, Verdict::shape);
  EXPECT_EQ(compare(at::zeros({3}), at::zeros({3}, at::kDouble), {}).verdict, Verdict::dtype);
}

TEST(Compare, FindsTheWorstIndexAndTheShareOfBadElements) {
  auto r = at::zeros({2, 3, 200000}), c = r.clone();
  c[1][2][77] = 0.5;
  c[0][1][5] = -0.25;
  c[0][0][0] = 1e-6;
  const auto m = compare(r, c, {});
  EXPECT_EQ(m.worst_index, (std::vector<int64_t>{1, 2, 77}));
  EXPECT_EQ(m.bad_elements, 2);
  EXPECT_EQ(m.max_abs, 0.5);
}

TEST(Compare, ToleranceIsInclusiveAndRelative) {
  EXPECT_EQ(compare(tensor({100}), tensor({100.5}), {0.5, 0}).verdict, Verdict::agrees);
  EXPECT_EQ(compare(tensor({100}), tensor({100.5}), {0, 0.01}).verdict, Verdict::agrees);
  EXPECT_EQ(compare(tensor({100}), tensor({100.5}), {0, 0.001}).verdict, Verdict::deviates);
}

TEST(Compare, IntegersAreExact) {
  EXPECT_EQ(compare(at::arange(5), at::arange(5), {}).verdict, Verdict::identical);
  EXPECT_EQ(compare(at::arange(5), at::arange(5) + 1, {10, 0}).verdict, Verdict::deviates);
}

TEST(Compare, NonContiguousTensorsAreComparedByElement) {
  const auto x = at::rand({4, 6});
  EXPECT_EQ(compare(x.t(), x.t().contiguous(), {}).verdict, Verdict::identical);
}

TEST(Logits, KlAndTop1) {
  const auto r = at::tensor({2.0, 1.0, 0.0, 0.0, 1.0, 2.0}).view({1, 2, 3});
  const auto same = compare_logits(r, r, {});
  EXPECT_EQ(same.kl, 0);
  EXPECT_EQ(same.top1_agreement, 1);
  const auto flipped = compare_logits(r, r.flip({-1}), {});
  EXPECT_EQ(flipped.top1_agreement, 0);
  // KL(p || reversed p) of softmax(2, 1, 0), by hand: (p0 - p2) * 2
  const double z = std::exp(2) + std::exp(1) + 1;
  EXPECT_NEAR(flipped.kl, (std::exp(2) - 1) / z * 2, 1e-12);
}

TEST(Logits, PadPositionsDoNotCount) {
  const auto r = at::tensor({2.0, 1.0, 0.0, 0.0, 1.0, 2.0}).view({1, 2, 3});
  auto c = r.clone();
  c[0][0].fill_(0);
  EXPECT_EQ(compare_logits(r, c, at::tensor({int64_t{0}, int64_t{1}}).view({1, 2})).kl, 0);
}

}  // namespace
}  // namespace lockstep
