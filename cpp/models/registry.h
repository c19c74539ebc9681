// The table of families. Adding one: a file in this folder (named in CMakeLists.txt), its make_ below
// and a line in registry.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "models/causal_lm.h"

namespace lockstep {

/// What a config may ask for before its tensors have been seen: anything larger is a mistake, not a model.
constexpr int64_t kMostLayers = 4096, kLargestHead = 65536;

struct Family {
  std::string name;                      // qwen3_5
  std::vector<std::string> model_types;  // config.json /model_type values of a text config
  std::string composite;                 // a /model_type whose /text_config is this family's, or empty
  std::string hf_class;                  // Qwen3_5ForCausalLM
  IgnoredNames ignored;
  /// Reads the (text) config strictly and builds the empty model. `tie` receives tie_word_embeddings.
  std::unique_ptr<CausalLM> (*make)(ConfigReader& config, bool* tie);
};

const std::vector<Family>& families();

/// A family's model for a checkpoint's config.json, composite or plain. Raises LoadError for an unknown model_type, a
/// quantized checkpoint, remote code, or a config the family refuses.
struct BuiltModel {
  const Family* family;
  std::unique_ptr<CausalLM> model;
  bool tie = false;
  ConfigReader::Settings settings;  // what the config says of the mathematics
};
BuiltModel build_model(const nlohmann::json& config, const std::string& where);

/// Config keys that no family computes with.
void ignore_common_keys(ConfigReader& config);

std::unique_ptr<CausalLM> make_qwen3_5(ConfigReader& config, bool* tie);
std::unique_ptr<CausalLM> make_llama(ConfigReader& config, bool* tie);

}  // namespace lockstep
