// config.json read strictly: two places that may disagree, unknown keys, no silent defaults.
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"
#include "files.h"
#include "models/registry.h"
#include "nn/rope.h"

namespace lockstep {
namespace {

using nlohmann::json;
using testing::expect_contains;
using testing::message_of;

json llama() {
  return {{"model_type", "llama"},
          {"vocab_size", 32},
          {"hidden_size", 16},
          {"intermediate_size", 24},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 4},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e5}}}};
}

json qwen() {
  return {
      {"model_type", "qwen3_5_text"},
      {"vocab_size", 32},
      {"hidden_size", 16},
      {"intermediate_size", 24},
      {"num_hidden_layers", 2},
      {"num_attention_heads", 2},
      {"num_key_value_heads", 1},
      {"head_dim", 16},
      {"linear_num_key_heads", 1},
      {"linear_num_value_heads", 2},
      {"linear_key_head_dim", 8},
      {"linear_value_head_dim", 4},
      {"linear_conv_kernel_dim", 4},
      {"rms_norm_eps", 1e-6},
      {"hidden_act", "silu"},
      {"layer_types", {"linear_attention", "full_attention"}},
      {"rope_parameters",
       {{"rope_type", "default"}, {"rope_theta", 1e4}, {"partial_rotary_factor", 0.25}, {"mrope_section", {1, 1, 0}}}}};
}

at::Tensor frequencies(const json& config) { return build_model(config, "config.json").model->inv_freq(); }
std::string refusal(const json& config) {
  return message_of<LoadError>([&] { build_model(config, "config.json"); });
}

TEST(Config, ThetaMayStandInEitherPlace) {
  auto top = llama(), both = llama(), old = llama();
  top["rope_parameters"].erase("rope_theta");
  top["rope_theta"] = 1e5;
  both["rope_theta"] = 1e5;
  old.erase("rope_parameters");
  old["rope_theta"] = 1e5;
  old["rope_scaling"] = nullptr;
  for (const auto& config : {top, both, old}) EXPECT_TRUE(at::equal(frequencies(config), frequencies(llama())));
}

TEST(Config, ThetaThatDisagreesOrLacksIsRefused) {
  auto both = llama(), none = llama();
  both["rope_theta"] = 10000.0;
  expect_contains(refusal(both),
                  "config.json /rope_theta is 10000 but config.json /rope_parameters/rope_theta is 100000");
  none["rope_parameters"].erase("rope_theta");
  expect_contains(refusal(none), "config.json /rope_theta: expected a number, found nothing; there is no default");
}

TEST(Config, PartialRotaryFactorMayStandInEitherPlace) {
  auto top = qwen(), both = qwen(), wrong = qwen();
  top["rope_parameters"].erase("partial_rotary_factor");
  top["partial_rotary_factor"] = 0.25;
  both["partial_rotary_factor"] = 0.25;
  wrong["partial_rotary_factor"] = 0.5;
  for (const auto& config : {top, both}) EXPECT_TRUE(at::equal(frequencies(config), frequencies(qwen())));
  expect_contains(refusal(wrong),
                  "/partial_rotary_factor is 0.5 but config.json /rope_parameters/partial_rotary_factor is 0.25");
}

TEST(Config, RopeTypesByEitherName) {
  auto named = llama(), typed = llama(), clash = llama(), unknown = llama();
  named["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 1e5}};
  typed["rope_parameters"] = {{"type", "linear"}, {"factor", 2.0}, {"rope_theta", 1e5}};
  EXPECT_TRUE(at::equal(frequencies(named), frequencies(typed)));
  EXPECT_TRUE(at::equal(frequencies(named) * 2, frequencies(llama())));
  clash["rope_parameters"] = {{"rope_type", "linear"}, {"type", "llama3"}, {"factor", 2.0}, {"rope_theta", 1e5}};
  expect_contains(refusal(clash),
                  "/rope_parameters/rope_type: is \"linear\" but config.json /rope_parameters/type is \"llama3\"");
  unknown["rope_parameters"]["rope_type"] = "longrope";
  EXPECT_EQ(
      refusal(unknown),
      "config.json /rope_parameters/rope_type: \"longrope\" is not implemented (implemented: default, linear, llama3)");
}

TEST(Config, UnknownAndUnimplementedKeysAreRefusedWithTheirPointer) {
  auto unknown = qwen(), gate = qwen(), inner = qwen();
  unknown["attention_sink"] = 4;
  expect_contains(refusal(unknown), "config.json /attention_sink: unknown key, found 4; it may change the mathematics");
  gate["attn_output_gate"] = false;
  expect_contains(refusal(gate), "config.json /attn_output_gate: false is not implemented (implemented: true)");
  inner["rope_parameters"]["low_freq"] = 1;
  expect_contains(refusal(inner), "config.json /rope_parameters/low_freq: unknown key");
}

TEST(Config, NumbersHaveNoDefault) {
  for (const char* key : {"vocab_size", "hidden_size", "rms_norm_eps", "head_dim", "linear_num_key_heads"}) {
    auto config = qwen();
    config.erase(key);
    expect_contains(refusal(config), std::string("config.json /") + key);
  }
  auto zero = qwen(), text = qwen(), odd = qwen();
  zero["hidden_size"] = 0;
  expect_contains(refusal(zero), "/hidden_size: expected an integer from 1");
  text["hidden_size"] = "16";
  expect_contains(refusal(text), "/hidden_size: expected an integer, found \"16\"");
  odd["linear_num_value_heads"] = 3;
  odd["linear_num_key_heads"] = 2;
  expect_contains(refusal(odd), "/linear_num_key_heads: expected a divisor of linear_num_value_heads 3, found 2");
}

TEST(Config, CompositeIsReadAtTextConfig) {
  json composite{{"model_type", "qwen3_5"},
                 {"text_config", qwen()},
                 {"vision_config", json::object()},
                 {"tie_word_embeddings", true}};
  const auto built = build_model(composite, "config.json");
  EXPECT_EQ(built.family->name, "qwen3_5");
  EXPECT_TRUE(built.tie);
  composite["text_config"]["tie_word_embeddings"] = false;
  expect_contains(refusal(composite), "/tie_word_embeddings: is true but /text_config/tie_word_embeddings is false");
  composite["text_config"] = qwen();
  composite["text_config"]["rope_parameters"]["rope_type"] = "yarn";
  expect_contains(refusal(composite),
                  "config.json /text_config/rope_parameters/rope_type: \"yarn\" is not implemented");
}

TEST(Config, PatternsThatDisagreeAreRefused) {
  auto config = qwen();
  config["full_attention_interval"] = 2;
  EXPECT_NO_THROW(build_model(config, "config.json"));
  config["full_attention_interval"] = 4;
  expect_contains(refusal(config), "/full_attention_interval: is 4, but layer_types says otherwise");
  auto empty = qwen();
  empty["rope_parameters"]["mrope_section"] = json::array();
  expect_contains(refusal(empty), "/rope_parameters/mrope_section: expected three lengths, found 0");
}

TEST(Config, OtherModelsAndQuantizationAreRefusedByName) {
  auto other = llama(), quantized = llama(), remote = llama();
  other["model_type"] = "mamba";
  expect_contains(refusal(other),
                  "/model_type: \"mamba\" is not implemented (implemented: qwen3_5_text, qwen3_5, llama)");
  quantized["quantization_config"] = {{"bits", 4}};
  expect_contains(refusal(quantized), "/quantization_config: quantized checkpoints are not implemented");
  remote["auto_map"] = {{"AutoModelForCausalLM", "x.Y"}};
  expect_contains(refusal(remote), "/auto_map: asks for remote code, which never runs here");
}

TEST(Json, DeepNestingAndDuplicatesAreRefused) {
  expect_contains(message_of<LoadError>([] { parse_json(std::string(100, '[') + std::string(100, ']'), "x.json"); }),
                  "nested deeper");
  expect_contains(message_of<LoadError>([] { parse_json(R"({"a":1,"\u0061":2})", "x.json"); }),
                  "x.json: duplicate key \"a\"");
}

}  // namespace
}  // namespace lockstep
