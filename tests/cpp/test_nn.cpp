// The clever forms against the obvious ones, in float64 with every float32 cast lifted; points and their levels.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "core/vector_math.h"
#include "files.h"
#include "nn/gated_delta_rule.h"
#include "nn/masks.h"
#include "nn/recorder.h"

namespace lockstep {
namespace {

using testing::expect_contains;
using testing::message_of;

/// As the Python module does on import.
struct Settled : ::testing::Environment {
  void SetUp() override { settle_vector_math(); }
};
[[maybe_unused]] const auto* const settled = ::testing::AddGlobalTestEnvironment(new Settled);

struct Here : Module {
  using Module::Module;
};

DeltaRuleInputs random_inputs(int64_t T, bool with_state) {
  at::manual_seed(7);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const int64_t B = 2, H = 3, Dk = 8, Dv = 5;
  DeltaRuleInputs in;
  in.query = at::randn({B, T, H, Dk}, options);
  in.key = at::randn({B, T, H, Dk}, options);
  in.value = at::randn({B, T, H, Dv}, options);
  in.decay = -at::rand({B, T, H}, options);
  in.beta = at::rand({B, T, H}, options);
  if (with_state) in.initial_state = at::randn({B, H, Dk, Dv}, options);
  return in;
}

double relative(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

class DeltaRule : public ::testing::TestWithParam<std::tuple<std::string, int64_t, bool>> {};

TEST_P(DeltaRule, ChunksAreTheLoop) {
  const auto& [variant, T, with_state] = GetParam();
  const Arithmetic exact(at::kDouble);
  lockstep::Run run(Variant::named(variant), Attn::sdpa, Level::all, nullptr, nullptr, exact);
  const Here here;
  const auto in = random_inputs(T, with_state);
  const auto chunks = chunk_gated_delta_rule(run, here, in), loop = recurrent_gated_delta_rule(run, here, in);
  EXPECT_LT(relative(chunks.output, loop.output), 1e-12);
  EXPECT_LT(relative(chunks.state, loop.state), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Lengths, DeltaRule,
                         ::testing::Combine(::testing::Values("5.10", "5.18", "5.24"),
                                            ::testing::Values(1, 63, 64, 65, 130), ::testing::Bool()));

TEST(DeltaRuleOfTheTruth, TheLoopOverNumbersIsTheLoopOverTensors) {
  const Arithmetic exact(at::kDouble), truth(at::kDouble, Order::plain);
  lockstep::Run by_tensors(Variant::named("5.18"), Attn::sdpa, Level::all, nullptr, nullptr, exact);
  lockstep::Run by_numbers(Variant::named("5.18"), Attn::sdpa, Level::all, nullptr, nullptr, truth);
  const Here here;
  for (const bool with_state : {false, true}) {
    const auto in = random_inputs(70, with_state);
    const auto a = recurrent_gated_delta_rule(by_tensors, here, in), b = chunk_gated_delta_rule(by_numbers, here, in);
    EXPECT_LT(relative(b.output, a.output), 1e-13);
    EXPECT_LT(relative(b.state, a.state), 1e-13);
  }
}

TEST(DeltaRuleStep, ByRowsHasTheBitsOfTheOperations) {
  struct ByOperations : Arithmetic {
    bool plain_steps() const override { return false; }
  } const operations;
  struct NotByOperations : Arithmetic {
    at::Tensor decay_state(const Module&, const at::Tensor&, const at::Tensor&) const override {
      throw std::logic_error("the loop over tensors ran");
    }
  } const by_rows;
  const Here here;
  for (const char* variant : {"5.10", "5.18"}) {
    lockstep::Run fast(Variant::named(variant), Attn::sdpa, Level::all, nullptr, nullptr, by_rows);
    lockstep::Run slow(Variant::named(variant), Attn::sdpa, Level::all, nullptr, nullptr, operations);
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const auto& [B, T, H, Dk, Dv] : std::vector<std::array<int64_t, 5>>{
               {1, 1, 16, 128, 128}, {3, 1, 16, 128, 128}, {1, 1, 4, 32, 48}, {2, 3, 5, 33, 7}, {1, 1, 1, 1, 1}}) {
        at::manual_seed(B + T + Dk);
        DeltaRuleInputs in;
        in.query = at::randn({B, T, H, Dk}).to(dtype), in.key = at::randn({B, T, H, Dk}).to(dtype);
        in.value = at::randn({B, T, H, Dv}).to(dtype), in.beta = at::rand({B, T, H}).to(dtype);
        in.decay = -at::rand({B, T, H}), in.initial_state = at::randn({B, H, Dk, Dv}).mul(30);
        const auto before = in.initial_state.clone();
        const auto a = recurrent_gated_delta_rule(fast, here, in), b = recurrent_gated_delta_rule(slow, here, in);
        EXPECT_TRUE(at::equal(a.output, b.output)) << B << " x " << T << " x " << H << " of " << Dk << " x " << Dv;
        EXPECT_TRUE(at::equal(a.state, b.state)) << B << " x " << T << " x " << H << " of " << Dk << " x " << Dv;
        EXPECT_TRUE(at::equal(in.initial_state, before));  // what a caller may still hold
      }
    }
  }
}

TEST(DeltaRuleByHand, OneTokenWritesBetaKV) {
  const Arithmetic exact(at::kDouble);
  lockstep::Run run(Variant::named("5.18"), Attn::sdpa, Level::all, nullptr, nullptr, exact);
  DeltaRuleInputs in;
  in.query = in.key = at::tensor({3.0, 4.0}, at::kDouble).view({1, 1, 1, 2});
  in.value = at::tensor({10.0}, at::kDouble).view({1, 1, 1, 1});
  in.decay = at::zeros({1, 1, 1}, at::kDouble);
  in.beta = at::full({1, 1, 1}, 0.5, at::kDouble);
  const Here here;
  const auto out = recurrent_gated_delta_rule(run, here, in);
  // k = (0.6, 0.8): S = 0.5 k 10; o = S^T k / sqrt(2) = 5 / sqrt(2)
  EXPECT_NEAR(out.state.view({-1})[0].item<double>(), 3.0, 1e-6);
  EXPECT_NEAR(out.state.view({-1})[1].item<double>(), 4.0, 1e-6);
  EXPECT_NEAR(out.output.item<double>(), 5 / std::sqrt(2.0), 1e-6);
}

TEST(Level, FollowsFromTheName) {
  const std::pair<const char*, Level> expected[] = {
      {"model.layers.3.output", Level::layer},
      {"model.norm.output", Level::layer},
      {"lm_head.output", Level::layer},
      {"model.layers.3.input", Level::all},
      {"model.layers.3.mlp.input", Level::sublayer},
      {"model.layers.3.linear_attn.output", Level::sublayer},
      {"model.layers.3.linear_attn.norm.output", Level::all},
      {"model.embed_tokens.output", Level::sublayer},
      {"model.rotary_emb@cos", Level::sublayer},
      {"model.rotary_emb@inv_freq", Level::all},
      {"model.layers.3.self_attn@key_cache", Level::sublayer},
      {"model.layers.0.linear_attn@recurrent_state", Level::sublayer},
      {"model.layers.0.linear_attn@decay", Level::all},
      {"model.norm.input", Level::sublayer},
      {"lm_head.input", Level::sublayer},
      {"model.output", Level::all},
  };
  for (const auto& [point, level] : expected) EXPECT_EQ(level_of(point), level) << point;
}

TEST(CausalMask, IsNoneWhereTransformersPassesNone) {
  Cache cache(1, 0);
  lockstep::Run plain(Variant::named("5.18"), Attn::sdpa, Level::layer, nullptr, nullptr);
  lockstep::Run cached(Variant::named("5.18"), Attn::sdpa, Level::layer, nullptr, &cache);
  lockstep::Run eager(Variant::named("5.18"), Attn::eager, Level::layer, nullptr, nullptr);
  const auto ones = at::ones({1, 4}, at::kLong);
  EXPECT_FALSE(causal_mask(plain, 1, 4, 0, {}, {}, at::kFloat).defined());
  EXPECT_FALSE(causal_mask(plain, 1, 4, 0, ones, {}, at::kFloat).defined());
  EXPECT_FALSE(causal_mask(cached, 1, 1, 3, {}, {}, at::kFloat).defined());
  EXPECT_TRUE(causal_mask(cached, 1, 2, 3, {}, {}, at::kFloat).defined());
  EXPECT_TRUE(causal_mask(eager, 1, 1, 0, {}, {}, at::kFloat).defined());
  const auto packed = at::tensor({int64_t{0}, int64_t{1}, int64_t{0}, int64_t{1}}).view({1, 4});
  const auto mask = causal_mask(plain, 1, 4, 0, {}, packed, at::kFloat);
  EXPECT_FALSE(mask[0][0][2][1].item<bool>());
  EXPECT_TRUE(mask[0][0][3][2].item<bool>());
  EXPECT_FALSE(causal_mask(cached, 1, 4, 0, {}, packed, at::kFloat).defined());
}

TEST(RecurrentMask, FollowsTheRelease) {
  Cache cache(1, 0);
  lockstep::Run old(Variant::named("5.10"), Attn::sdpa, Level::layer, nullptr, nullptr);
  lockstep::Run now(Variant::named("5.18"), Attn::sdpa, Level::layer, nullptr, nullptr);
  auto one = at::ones({1, 4}, at::kLong), two = at::ones({2, 4}, at::kLong);
  EXPECT_FALSE(recurrent_mask(now, 4, 0, one).defined());
  one[0][0] = two[0][0] = 0;
  EXPECT_FALSE(recurrent_mask(old, 4, 0, one).defined());
  EXPECT_TRUE(recurrent_mask(now, 4, 0, one).defined());
  EXPECT_TRUE(recurrent_mask(old, 4, 0, two).defined());
  EXPECT_FALSE(recurrent_mask(old, 2, 2, two).defined());
  EXPECT_EQ(recurrent_mask(now, 2, 2, two).sizes(), (at::IntArrayRef{2, 2}));
  EXPECT_FALSE(recurrent_mask(now, 1, 3, two).defined());
}

TEST(Variant, UnknownNameIsRefused) {
  expect_contains(message_of<InputError>([] { Variant::named("6.0"); }),
                  "variant \"6.0\" is not known (known: 5.10, 5.18, 5.24)");
}

TEST(HfLinear, FoldsTheLastPositionsOfABatchAsAWeightWithAGradientDoes) {
  at::NoGradGuard no_grad;
  at::manual_seed(3);
  const auto weight = at::randn({1024, 128}), wanting = weight.clone().requires_grad_(true);
  const auto last = at::randn({4, 12, 128}).slice(1, -1);
  EXPECT_TRUE(at::equal(hf_linear(last, weight), at::linear(last, wanting)));
  EXPECT_FALSE(at::equal(at::linear(last, weight), at::linear(last, wanting)));  // else the fold is needed no more
}

}  // namespace
}  // namespace lockstep
