// What a checkpoint says of generation, and the mechanics of greedy decoding on a tiny model.
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "core/error.h"
#include "files.h"
#include "generate/fast_arithmetic.h"
#include "generate/generation_config.h"
#include "generate/greedy.h"
#include "models/registry.h"

namespace lockstep {
namespace {

using nlohmann::json;
using testing::expect_contains;
using testing::message_of;
using testing::TemporaryFolder;
using testing::write_file;
using Ids = std::vector<int64_t>;

/// The reading of a folder with this generation_config.json (null: none) beside this config.json.
GenerationConfig read(const json& own, const json& model = json::object()) {
  const TemporaryFolder folder;
  if (!own.is_null()) write_file(folder / "generation_config.json", own.dump());
  return GenerationConfig::read(folder.str(), model);
}
std::string refusal(const json& own, const json& model = json::object()) {
  return message_of<LoadError>([&] { read(own, model); });
}

TEST(MultiplyStored, IsTheProductWhateverTheShape) {
  for (const auto& [N, K] : std::vector<std::array<int64_t, 2>>{
           {1, 1}, {3, 2}, {4, 15}, {5, 16}, {7, 17}, {130, 33}, {1000, 1026}, {6, 20000}}) {
    at::manual_seed(N + K);
    const auto weight = at::randn({N, K}).to(at::kBFloat16), row = at::randn({K});
    const auto y = multiply_stored(weight, row);
    EXPECT_EQ(y.sizes(), at::IntArrayRef{N});
    const auto exact = at::mv(weight.to(at::kDouble), row.to(at::kDouble));
    const auto terms = at::mv(weight.to(at::kDouble).abs(), row.to(at::kDouble).abs());
    EXPECT_LT(((y - exact).abs() / terms).max().item<double>(), 1e-6) << N << " x " << K;
  }
}

TEST(GenerationConfig, StopTokensAreAListOrOneOrNone) {
  EXPECT_EQ(read({{"eos_token_id", {7, 9}}}).stop, (Ids{7, 9}));
  EXPECT_EQ(read({{"eos_token_id", 7}}).stop, Ids{7});
  EXPECT_EQ(read({{"eos_token_id", nullptr}}).stop, Ids{});
  EXPECT_EQ(read(json::object()).stop, Ids{});
}

TEST(GenerationConfig, TheFileAloneCountsWhereItIsThere) {
  const json model{{"eos_token_id", 3}, {"text_config", {{"eos_token_id", 4}}}, {"repetition_penalty", 1.5}};
  EXPECT_EQ(read(json::object(), model).stop, Ids{});
  EXPECT_EQ(read({{"eos_token_id", 7}}, model).stop, Ids{7});
}

TEST(GenerationConfig, WithoutTheFileTheModelsConfigIsAsked) {
  EXPECT_EQ(read(nullptr, {{"eos_token_id", 3}}).stop, Ids{3});
  EXPECT_EQ(read(nullptr, {{"eos_token_id", 3}, {"text_config", {{"eos_token_id", 4}}}}).stop, Ids{3});
  EXPECT_EQ(read(nullptr, {{"eos_token_id", nullptr}, {"text_config", {{"eos_token_id", {4, 5}}}}}).stop, (Ids{4, 5}));
  EXPECT_EQ(read(nullptr, {{"decoder", {{"eos_token_id", 6}}}, {"text_config", {{"eos_token_id", 4}}}}).stop, Ids{6});
  EXPECT_EQ(read(nullptr, {{"hidden_size", 8}}).file, "config.json");
  expect_contains(refusal(nullptr, {{"text_config", {{"eos_token_id", "x"}}}}),
                  "/config.json /text_config/eos_token_id: expected a token id or a list of them, found \"x\"");
  expect_contains(refusal(nullptr, {{"text_config", {{"repetition_penalty", 1.1}}}}),
                  "/config.json /text_config/repetition_penalty: 1.1 is not implemented");
}

TEST(GenerationConfig, ThePadIsTheFirstStopTokenIfNothingElse) {
  EXPECT_EQ(read({{"eos_token_id", {7, 9}}}).pad, 7);
  EXPECT_EQ(read({{"eos_token_id", {7, 9}}, {"pad_token_id", 0}}).pad, 0);
  EXPECT_EQ(read(json::object()).pad, std::nullopt);
}

TEST(GenerationConfig, LengthsGoInTransformersOrder) {
  const auto stated = read({{"max_new_tokens", 5}, {"max_length", 30}});
  EXPECT_EQ(stated.new_tokens(10, 7), 7);
  EXPECT_EQ(stated.new_tokens(10, std::nullopt), 5);
  const auto total = read({{"max_length", 30}});
  EXPECT_EQ(total.new_tokens(10, std::nullopt), 20);
  expect_contains(message_of<InputError>([&] { total.new_tokens(30, std::nullopt); }),
                  "the prompt has 30 tokens, but max_length in generation_config.json is 30; say max_new_tokens");
  EXPECT_EQ(read(json::object()).new_tokens(10, std::nullopt), 20);
  const auto bounded = read(json::object(), {{"text_config", {{"max_position_embeddings", 12}}}});
  EXPECT_EQ(bounded.new_tokens(10, std::nullopt), 2);
  EXPECT_EQ(bounded.new_tokens(10, 7), 7);
  expect_contains(message_of<InputError>([&] { bounded.new_tokens(12, std::nullopt); }), "max_position_embeddings");
  expect_contains(message_of<InputError>([&] { bounded.new_tokens(1, 0); }), "max_new_tokens 0: expected 1 or more");
}

TEST(GenerationConfig, SamplingIsOverruledInOneLine) {
  const auto config = read({{"do_sample", true}, {"temperature", 0.6}, {"top_k", 20}, {"top_p", 0.95}});
  ASSERT_EQ(config.notes.size(), 1u);
  EXPECT_EQ(
      config.notes.front(),
      "generation_config.json: do_sample (temperature 0.6, top_k 20, top_p 0.95) is overruled: decoding is greedy");
  EXPECT_TRUE(read({{"do_sample", false}, {"temperature", 0.6}}).notes.empty());
  EXPECT_EQ(read({{"use_cache", false}}).notes.size(), 1u);
}

TEST(GenerationConfig, WhatChangesAGreedyTokenIsRefusedByName) {
  const std::vector<std::pair<const char*, json>> settings = {
      {"repetition_penalty", 1.05},
      {"encoder_repetition_penalty", 1.1},
      {"no_repeat_ngram_size", 3},
      {"encoder_no_repeat_ngram_size", 3},
      {"bad_words_ids", {{1}}},
      {"suppress_tokens", {1, 2}},
      {"begin_suppress_tokens", {1}},
      {"forced_bos_token_id", 1},
      {"forced_eos_token_id", 1},
      {"sequence_bias", {{{1}, 2.0}}},
      {"num_beams", 4},
      {"num_beam_groups", 2},
      {"num_return_sequences", 2},
      {"diversity_penalty", 0.5},
      {"penalty_alpha", 0.6},
      {"guidance_scale", 1.5},
      {"watermarking_config", {{"bias", 2.5}}},
      {"stop_strings", {"end"}},
      {"max_time", 1.0},
      {"exponential_decay_length_penalty", {5, 1.1}},
      {"renormalize_logits", true},
      {"remove_invalid_values", true},
      {"token_healing", true},
      {"dola_layers", "high"},
      {"prompt_lookup_num_tokens", 10},
      {"assistant_early_exit", 4},
      {"use_mtp", true},
      {"min_length", 5},
      {"prefill_chunk_size", 64},
      {"cache_implementation", "quantized"},
      {"constraints", {1}},
      {"force_words_ids", {{1}}},
  };
  for (const auto& [key, value] : settings) {
    const auto text = refusal({{key, value}});
    expect_contains(text, std::string("/generation_config.json /") + key + ": " + value.dump() + " is not implemented");
    expect_contains(text, "remove it and compare with that");
  }
}

TEST(GenerationConfig, NeutralValuesPass) {
  EXPECT_NO_THROW(read({{"repetition_penalty", 1.0},
                        {"num_beams", 1},
                        {"no_repeat_ngram_size", 0},
                        {"suppress_tokens", json::array()},
                        {"guidance_scale", 1},
                        {"forced_eos_token_id", nullptr},
                        {"renormalize_logits", false},
                        {"transformers_version", "5.18.0"},
                        {"_from_model_config", true},
                        {"bos_token_id", 1},
                        {"output_scores", true},
                        {"length_penalty", 2.0},
                        {"cache_implementation", "hybrid"}}));
}

TEST(GenerationConfig, UnknownKeysAndWrongTypesAreErrors) {
  expect_contains(refusal({{"my_penalty", 2}}), "/generation_config.json /my_penalty: unknown key, found 2");
  for (const json& wrong :
       {json("7"), json(7.5), json(true), json(-1), json::array(), json::array({7, "x"}), json(1e18)})
    expect_contains(refusal({{"eos_token_id", wrong}}), "/eos_token_id: expected a token id or a list of them, found ");
  expect_contains(refusal({{"pad_token_id", {1}}}), "/pad_token_id: expected an integer, found [1]");
  expect_contains(refusal({{"max_new_tokens", 0}}), "/max_new_tokens: expected an integer from 1 up, found 0");
  expect_contains(refusal({{"max_new_tokens", "5"}}), "/max_new_tokens: expected an integer, found \"5\"");
  expect_contains(refusal({{"min_new_tokens", -1}}), "/min_new_tokens: expected an integer from 0 up, found -1");
  expect_contains(refusal({{"do_sample", "yes"}}), "/do_sample: expected true or false, found \"yes\"");
  expect_contains(refusal({{"temperature", "hot"}}), "/temperature: expected a number, found \"hot\"");
  expect_contains(refusal(json::array({1})), "expected an object");
  const TemporaryFolder folder;
  write_file(folder / "generation_config.json", "{\"eos_token_id\": 1, \"eos_token_id\": 2}");
  expect_contains(message_of<LoadError>([&] { GenerationConfig::read(folder.str(), json::object()); }),
                  "duplicate key \"eos_token_id\"");
  write_file(folder / "generation_config.json", "{");
  expect_contains(message_of<LoadError>([&] { GenerationConfig::read(folder.str(), json::object()); }),
                  "not valid JSON");
}

/// A random Llama in float32 whose every parameter was drawn.
class TinyModel {
 public:
  TinyModel() {
    const json config{{"model_type", "llama"},
                      {"vocab_size", 32},
                      {"hidden_size", 16},
                      {"intermediate_size", 24},
                      {"num_hidden_layers", 2},
                      {"num_attention_heads", 4},
                      {"num_key_value_heads", 2},
                      {"head_dim", 4},
                      {"rms_norm_eps", 1e-5},
                      {"hidden_act", "silu"},
                      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
    built_ = build_model(config, "config.json");
    at::manual_seed(7);
    for (auto* p : built_.model->parameters()) p->value = at::randn(p->shape);
  }
  CausalLM& operator*() { return *built_.model; }
  at::Tensor& parameter(const std::string& name) {
    for (auto* p : built_.model->parameters()) {
      if (p->name == name) return p->value;
    }
    throw std::logic_error(name);
  }
  Decoding decoding() { return Decoding(*built_.model, Variant::named("5.18"), Attn::sdpa); }

 private:
  BuiltModel built_;
};

at::Tensor ids(const Ids& row) { return at::tensor(row, at::kLong).view({1, -1}); }

GreedyOptions up_to(int64_t tokens, Ids stop = {}, std::optional<int64_t> pad = {}) {
  GreedyOptions options;
  options.stop = std::move(stop), options.pad = pad, options.max_new_tokens = tokens, options.keep_logits = true;
  return options;
}

Generated run(TinyModel& model, const at::Tensor& prompt, const GreedyOptions& options, const at::Tensor& mask = {}) {
  auto decoding = model.decoding();
  return greedy(decoding, prompt, mask, options);
}

TEST(Greedy, EndsWithTheStopTokenOrTheLength) {
  TinyModel model;
  const auto free = run(model, ids({3, 4, 5}), up_to(8));
  ASSERT_EQ(free.tokens[0].size(), 8u);
  EXPECT_FALSE(free.stopped[0]);
  EXPECT_EQ(free.steps, 8);
  EXPECT_EQ(free.logits.size(), 8u);
  EXPECT_EQ(free.logits[0].sizes(), (at::IntArrayRef{1, 32}));

  const auto third = free.tokens[0][2];
  const auto first_at = std::find(free.tokens[0].begin(), free.tokens[0].end(), third) - free.tokens[0].begin();
  const auto stopped = run(model, ids({3, 4, 5}), up_to(8, {31 - third, third}));
  EXPECT_TRUE(stopped.stopped[0]);
  EXPECT_LE(static_cast<int64_t>(stopped.tokens[0].size()), first_at + 1);
}

TEST(Greedy, AStopTokenMayComeFirstAndInThePrompt) {
  TinyModel model;
  const auto first = run(model, ids({3, 4, 5}), up_to(4)).tokens[0][0];
  const auto done = run(model, ids({3, 4, 5}), up_to(4, {first}));
  EXPECT_EQ(done.tokens[0], Ids{first});
  EXPECT_EQ(done.steps, 1);
  EXPECT_EQ(run(model, ids({3, 4, 5}), up_to(4, {4})).tokens[0][0], first);  // in the prompt it stops nothing
}

TEST(Greedy, NoStopTokenBeforeTheLeast) {
  TinyModel model;
  const auto first = run(model, ids({3, 4, 5}), up_to(4)).tokens[0][0];
  auto options = up_to(6, {first});
  options.min_new_tokens = 3;
  const auto done = run(model, ids({3, 4, 5}), options);
  for (size_t i = 0; i < 3; ++i) EXPECT_NE(done.tokens[0][i], first);
  EXPECT_GE(done.tokens[0].size(), 4u);
  EXPECT_EQ(done.logits[0].argmax().item<int64_t>(), first);  // what is asked for is what the model said
}

TEST(Greedy, OfEqualLogitsTheFirstIsTaken) {
  auto logits = at::zeros({2, 300000});
  logits[0][70000] = logits[0][299999] = 1;
  logits[1][299999] = logits[1][123456] = logits[1][123457] = 1;
  const auto chosen = choose(logits, {}, false);
  EXPECT_EQ(chosen[0].item<int64_t>(), 70000);
  EXPECT_EQ(chosen[1].item<int64_t>(), 123456);
  EXPECT_EQ(choose(logits, {70000}, true)[0].item<int64_t>(), 299999);
  EXPECT_EQ(logits[0][70000].item<float>(), 1);  // left as it was
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(choose(at::full({1, 5}, -infinity), {}, false).item<int64_t>(), 0);
}

TEST(Greedy, RowsOfABatchAreThemselvesAndFinishedOnesGetPads) {
  TinyModel model;
  const Ids a{3, 4, 5, 6, 7}, b{9, 10};
  const auto alone_a = run(model, ids(a), up_to(6)), alone_b = run(model, ids(b), up_to(6));
  auto prompt = at::full({2, 5}, 0, at::kLong), mask = at::zeros({2, 5}, at::kLong);
  prompt[0].copy_(ids(a)[0]), mask[0].fill_(1);
  prompt[1].slice(0, 3).copy_(ids(b)[0]), mask[1].slice(0, 3).fill_(1);
  const auto both = run(model, prompt, up_to(6), mask);
  EXPECT_EQ(both.tokens[0], alone_a.tokens[0]);
  EXPECT_EQ(both.tokens[1], alone_b.tokens[0]);

  // The first row stops at once; the second goes on, and the first is fed with pads.
  const auto stop = alone_a.tokens[0][0];
  auto decoding = model.decoding();
  Ids fed;
  const auto done = greedy(decoding, prompt, mask, up_to(4, {stop}, 1), [&](const GreedyStep& step) {
    fed.push_back(step.tokens[0].item<int64_t>());
    return true;
  });
  EXPECT_EQ(done.tokens[0], Ids{stop});
  EXPECT_EQ(fed.front(), stop);
  for (size_t i = 1; i < fed.size(); ++i) EXPECT_EQ(fed[i], 1);
  EXPECT_EQ(fed.size(), static_cast<size_t>(done.steps));
  EXPECT_GT(done.tokens[1].size(), 1u);
}

TEST(Greedy, TheCallerMayEndIt) {
  TinyModel model;
  auto decoding = model.decoding();
  const auto done = greedy(decoding, ids({3}), {}, up_to(8), [](const GreedyStep& step) { return step.index < 2; });
  EXPECT_EQ(done.tokens[0].size(), 3u);
  EXPECT_EQ(decoding.cache().past, 3);  // the prompt and the two tokens that were stepped with
}

TEST(Greedy, ThePromptIsOneForwardAndThenEachTokenOne) {
  TinyModel model;
  auto by_hand = model.decoding();
  auto logits = by_hand.prefill(ids({3, 4, 5}), {});
  const auto done = run(model, ids({3, 4, 5}), up_to(5));
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(at::equal(logits, done.logits[i]));
    if (i < 4) logits = by_hand.step(at::tensor({done.tokens[0][i]}, at::kLong));
  }
  EXPECT_EQ(by_hand.cache().past, 7);
}

TEST(Greedy, BadInputIsRefusedInOneSentence) {
  TinyModel model;
  auto refused = [&](const at::Tensor& prompt, const GreedyOptions& options, const at::Tensor& mask = {}) {
    return message_of<InputError>([&] { run(model, prompt, options, mask); });
  };
  expect_contains(refused(at::empty({1, 0}, at::kLong), up_to(3)), "at least one token of prompt, found [1, 0]");
  expect_contains(refused(ids({3, 32}), up_to(3)), "ids: expected 0 to 31 (vocab_size 32), found 32");
  expect_contains(refused(ids({3, -1}), up_to(3)), "found -1");
  expect_contains(refused(ids({3}), up_to(0)), "max_new_tokens 0: expected 1 or more");
  expect_contains(refused(ids({3, 4}).expand({2, 2}), up_to(3, {1})), "pad: rows that end early need a pad token");
  const auto right = at::tensor({1, 1, 0, 0, 1, 1}, at::kLong).view({2, 3});
  expect_contains(refused(ids({3, 4, 5}).expand({2, 3}), up_to(3), right), "mask: ");
  const auto hole = at::tensor({1, 0, 1, 1, 1, 1}, at::kLong).view({2, 3});
  expect_contains(refused(ids({3, 4, 5}).expand({2, 3}), up_to(3), hole), "mask: expected left padding");
  auto decoding = model.decoding();
  expect_contains(message_of<InputError>([&] { decoding.step(at::tensor({int64_t{1}})); }), "there is no prompt yet");
  decoding.prefill(ids({3}), {});
  expect_contains(message_of<InputError>([&] { decoding.prefill(ids({3}), {}); }), "this run has begun already");
}

TEST(Greedy, ATailRowThatNoTokenizerKnowsMayWin) {
  TinyModel model;
  model.parameter("lm_head.weight").slice(0, 0, 31).mul_(1e-3);
  const auto done = run(model, ids({3, 4, 5}), up_to(3));
  auto negative = run(model, ids({3, 4, 5}), up_to(1)).logits[0];
  EXPECT_TRUE(done.tokens[0][0] == 31 || negative[0][31].item<float>() < 0);
}

}  // namespace
}  // namespace lockstep
