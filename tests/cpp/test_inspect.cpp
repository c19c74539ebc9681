// The inspector's numbers on vectors that can be checked by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "inspect/ablation.h"
#include "inspect/inspection.h"
#include "inspect/numbers.h"
#include "nn/arithmetic.h"

namespace lockstep::inspect {
namespace {

at::Tensor row(std::initializer_list<double> values) {
  return at::tensor(std::vector<double>(values), at::kDouble).unsqueeze(0);
}

TEST(Inspect, ToyStream) {
  const auto stream = row({1.2, -0.4, 0.8, 0.3}), delta = row({0.1, 0.3, -0.1, 0.0});
  const auto sum = stream + delta;
  EXPECT_EQ(numbers(sum[0]), nlohmann::json({1.3, -0.1, 0.7, 0.3}));
  const auto told = spread(sum);
  EXPECT_NEAR(told["mean"][0].get<double>(), 0.55, 1e-9);
  EXPECT_NEAR(told["min"][0].get<double>(), -0.1, 1e-9);
  EXPECT_NEAR(told["max"][0].get<double>(), 1.3, 1e-9);
  EXPECT_NEAR(told["l2"][0].get<double>(), std::sqrt(1.69 + 0.01 + 0.49 + 0.09), 1e-8);
  EXPECT_NEAR(told["std"][0].get<double>(), std::sqrt((0.5625 + 0.4225 + 0.0225 + 0.0625) / 4), 1e-8);
  EXPECT_EQ(told["near_zero"][0], 0.0);
  const double product = 0.12 - 0.12 - 0.08, sizes = std::sqrt(2.33) * std::sqrt(0.11);
  EXPECT_NEAR(cosines(delta, stream)[0].item<double>(), product / sizes, 1e-12);
}

TEST(Inspect, RmsNormBringsAVectorToAboutTheRootOfItsLength) {
  at::manual_seed(1);
  struct Nowhere : Module {
  } nowhere;
  for (const double size : {0.01, 1.0, 1e4}) {
    for (const int64_t D : {64, 1024}) {
      const auto x = at::randn({3, D}) * size + size;
      const auto normed = hf_arithmetic().rms_normalized(nowhere, x, 1e-6);
      for (const auto& l2 : spread(normed)["l2"])
        EXPECT_NEAR(l2.get<double>(), std::sqrt(double(D)), 0.01 * std::sqrt(double(D)));
    }
  }
}

TEST(Inspect, NearZeroIsOfTheTokensOwnSize) {
  const auto told = spread(at::cat({row({1, 0, 0.001, -1}), row({1e-6, 0, 1e-9, -1e-6})}));
  EXPECT_EQ(told["near_zero"], nlohmann::json({0.5, 0.5}));
  EXPECT_EQ(told["all"]["near_zero"], 0.5);
}

TEST(Inspect, SharesCountEveryValueOnce) {
  const auto told = shares(at::tensor({0.0, 0.05, 0.0999, 0.5, 1.0}, at::kDouble));
  EXPECT_EQ(told["histogram"][0], 1);
  EXPECT_EQ(told["histogram"][1], 2);
  EXPECT_EQ(told["histogram"][10], 1);
  EXPECT_EQ(told["histogram"][19], 1);
  EXPECT_NEAR(told["below_tenth"].get<double>(), 0.6, 1e-12);
}

TEST(Inspect, EqualScoresGoByTheId) {
  const auto told = most_probable(at::tensor({0.2, 0.3, 0.3, 0.2}, at::kDouble), 2);
  EXPECT_EQ(told[0]["id"], 1);
  EXPECT_EQ(told[1]["id"], 2);
  EXPECT_EQ(told[0]["p"], told[1]["p"]);
}

TEST(Inspect, OfManyEqualScoresTheFirstIdsComeFirst) {
  const auto told = most_probable(at::full({1000}, 0.001, at::kDouble), 3);
  ASSERT_EQ(told.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(told[i]["id"], i);
}

TEST(Inspect, NearZeroBesideNothingFiniteIsNull) {
  const auto told = spread(at::cat({row({1, 0, NAN, 2}), row({INFINITY, 0, 1, 2}), row({1, 0, 0.001, -1})}));
  EXPECT_TRUE(told["near_zero"][0].is_null());
  EXPECT_TRUE(told["near_zero"][1].is_null());
  EXPECT_EQ(told["near_zero"][2], 0.5);
  EXPECT_TRUE(told["all"]["near_zero"].is_null());
}

TEST(Inspect, WhatIsNotFiniteIsNull) {
  EXPECT_EQ(numbers(at::tensor({1.0, NAN, INFINITY}, at::kDouble)), nlohmann::json({1.0, nullptr, nullptr}));
}

TEST(Inspect, NothingFiniteIsToldAsNothing) {
  const auto nothing = at::full({4}, NAN, at::kDouble);
  const auto told = shares(nothing);
  for (const char* key : {"mean", "min", "max", "below_tenth"}) EXPECT_TRUE(told[key].is_null()) << key;
  EXPECT_EQ(told["histogram"], nlohmann::json(std::vector<int>(20, 0)));
  EXPECT_EQ(shares(at::tensor({NAN, 0.5}, at::kDouble))["mean"], 0.5);
  for (const auto& next : most_probable(nothing, 3)) EXPECT_TRUE(next["p"].is_null());
  EXPECT_TRUE(std::isnan(cosines(nothing.unsqueeze(0), nothing.unsqueeze(0))[0].item<double>()));
  EXPECT_EQ(cosines(row({0, 0}), row({1, 0}))[0].item<double>(), 0);
}

TEST(Inspect, AttentionOfOneHeadByHand) {
  // Two tokens, one head of one dim: the second query sees keys 0 and ln 3, so it gives them 1/4 and 3/4.
  const auto q = at::ones({1, 1, 2, 1}, at::kDouble);
  const auto k = at::tensor({0.0, std::log(3.0)}, at::kDouble).view({1, 1, 2, 1});
  const auto told = full_attention({}, q, k);
  EXPECT_EQ(told["queries_from"], 1);
  EXPECT_NEAR(told["first_token"].get<double>(), 0.25, 1e-9);
  EXPECT_NEAR(told["entropy_by_head"][0].get<double>(), -(0.25 * std::log(0.25) + 0.75 * std::log(0.75)), 1e-9);
  EXPECT_FALSE(told.contains("gate"));
}

TEST(Inspect, AblationHoldsWhatItIsTold) {
  Ablation ablation({{2, 1, 7.0, false}, {2, 0, 5.0, true}});
  const auto x = at::zeros({1, 3, 2});
  EXPECT_EQ(ablation.instead("model.layers.1.mlp.down_proj.input", x), nullptr);
  const auto* held = ablation.instead("model.layers.2.mlp.down_proj.input", x);
  ASSERT_NE(held, nullptr);
  EXPECT_TRUE(at::equal(*held, at::tensor({0.f, 7.f, 0.f, 7.f, 5.f, 7.f}).view({1, 3, 2})));
  EXPECT_EQ(x.abs().sum().item<float>(), 0);  // the run's own tensor stays
}

}  // namespace
}  // namespace lockstep::inspect
