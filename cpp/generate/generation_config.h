// What a checkpoint says of generation: where it stops and how long it may go, as transformers resolves it. What would
// change a greedy token is refused by name; sampling is overruled.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// mirrors transformers generation/configuration_utils.GenerationConfig as model.generation_config holds it after
/// from_pretrained (5.10 to 5.24)
struct GenerationConfig {
  std::string file;            // where it was read from: generation_config.json, else config.json
  std::vector<int64_t> stop;   // eos_token_id; empty: nothing but the length ends a row
  std::optional<int64_t> pad;  // pad_token_id, else the first stop token
  std::optional<int64_t> max_new_tokens, min_new_tokens;
  std::optional<int64_t> max_length;               // of prompt and new tokens together
  std::optional<int64_t> max_position_embeddings;  // config.json's; bounds the default length only
  std::vector<std::string> notes;                  // what is overruled, a line each

  /// generation_config.json of the folder; without that file `config`, its config.json, and the text config in it, as
  /// GenerationConfig.from_model_config takes them. Raises LoadError for bad JSON, a wrong type, an unknown key, and
  /// for every setting that plain greedy decoding does not have.
  static GenerationConfig read(const std::string& folder, const nlohmann::json& config);

  /// How many tokens may follow a prompt of `prompt` tokens: `asked`, else max_new_tokens, else what max_length leaves,
  /// else 20. mirrors GenerationMixin._prepare_generated_length. Raises InputError if nothing is left.
  int64_t new_tokens(int64_t prompt, std::optional<int64_t> asked) const;
};

}  // namespace lockstep
