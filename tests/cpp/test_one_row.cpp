// The product of one row, whole and in parts: the same bits for every shape.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "nn/one_row.h"

namespace lockstep {
namespace {

// Shapes of Qwen3.5-0.8B, of SmolLM2, of the embedded checkpoint, of other models, and odd ones.
const std::vector<std::pair<int64_t, int64_t>> kShapes = {
    {6144, 1024}, {2048, 1024}, {16, 1024},   {1024, 2048}, {4096, 1024}, {512, 1024}, {3584, 1024}, {1024, 3584},
    {576, 576},   {192, 576},   {1536, 576},  {576, 1536},  {49152, 576}, {1024, 128}, {384, 128},   {128, 384},
    {448, 128},   {8192, 512},  {4096, 4096}, {128, 12288}, {192, 8191},  {1003, 777}, {2049, 1024}, {333, 4096}};

class OneRow : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(OneRow, HasTheBitsOfTheWholeCallForEveryShape) {
  const auto threads = at::get_num_threads();
  at::set_num_threads(2);
  int64_t split = 0;
  for (const auto& [rows, inner] : kShapes) {
    at::manual_seed(rows + inner);
    const auto weight = (at::randn({rows, inner}) * 0.05).to(GetParam());
    for (int i = 0; i < 4; ++i) {
      const auto x = at::randn({1, 1, inner}).to(GetParam());
      const auto expected = at::linear(x, weight), found = hf_linear(x, weight);
      ASSERT_EQ(found.sizes(), expected.sizes());
      EXPECT_TRUE(at::equal(found, expected)) << rows << " x " << inner;
      split += one_row::splits(x, weight) && one_row::keeps_bits(weight, 2);
    }
  }
  if (GetParam() == at::kFloat) {
    EXPECT_GT(split, 20);  // else nothing was tried
  }
  at::set_num_threads(threads);
}

/// The trial is what keeps a split out where it would change bits: it must see every shape and number of parts that
/// does.
TEST_P(OneRow, IsNotSplitWherePartsHaveOtherBits) {
  const auto dtype = GetParam();
  for (const auto& [rows, inner] : kShapes) {
    at::manual_seed(rows * inner);
    const auto weight = (at::randn({rows, inner}) * 0.05).to(dtype);
    for (const int64_t parts : {2, 3, 8}) {
      const bool keeps = one_row::keeps_bits(weight, parts);
      for (int i = 0; keeps && i < 8; ++i) {
        const auto x = at::randn({1, inner}).to(dtype);
        EXPECT_TRUE(at::equal(one_row::in_parts(x, weight, parts), at::linear(x, weight)))
            << rows << " x " << inner << " in " << parts;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, OneRow, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf, at::kDouble));

TEST(OneRowSplit, IsOfferedOnlyWhereItMayPay) {
  const auto threads = at::get_num_threads();
  at::set_num_threads(2);
  const auto weight = at::randn({2048, 1024}), x = at::randn({1, 1, 1024});
  EXPECT_TRUE(one_row::splits(x, weight));
  EXPECT_FALSE(one_row::splits(at::randn({1, 2, 1024}), weight));
  EXPECT_FALSE(one_row::splits(at::randn({2, 1, 1024}), weight));
  EXPECT_FALSE(one_row::splits(x, at::randn({1024, 2048}).t()));
  EXPECT_FALSE(one_row::splits(x, at::randn({2049, 1024})));
  EXPECT_FALSE(one_row::splits(x.to(at::kDouble), weight.to(at::kDouble)));
  EXPECT_FALSE(one_row::splits(at::randn({1, 1, 128}), at::randn({384, 128})));
  at::parallel_for(0, 2, 1, [&](int64_t, int64_t) { EXPECT_FALSE(one_row::splits(x, weight)); });
  at::set_num_threads(1);
  EXPECT_FALSE(one_row::splits(x, weight));
  at::set_num_threads(threads);
}

TEST(HfLinear, FoldsTheLastPositionsOfABatchAsAWeightWithAGradientDoes) {
  at::NoGradGuard no_grad;
  at::manual_seed(3);
  const auto weight = at::randn({1024, 128}), wanting = weight.clone().requires_grad_(true);
  const auto last = at::randn({4, 12, 128}).slice(1, -1);
  EXPECT_TRUE(at::equal(hf_linear(last, weight), at::linear(last, wanting)));
  EXPECT_FALSE(at::equal(at::linear(last, weight), at::linear(last, wanting)));  // else the fold is needed no more
}

TEST(OneRowSplit, TakesAWeightThatWantsAGradient) {
  const auto threads = at::get_num_threads();
  at::set_num_threads(2);
  at::NoGradGuard no_grad;
  const auto weight = at::randn({2048, 1024}).requires_grad_(true);
  const auto x = at::randn({1, 1, 1024});
  EXPECT_TRUE(at::equal(hf_linear(x, weight), at::linear(x, weight)));
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace lockstep
