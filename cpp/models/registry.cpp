#include "models/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"

namespace lockstep {

const std::vector<Family>& families() {
  static const std::vector<Family> table = {
      {"qwen3_5",
       {"qwen3_5_text"},
       "qwen3_5",
       "Qwen3_5ForCausalLM",
       {{"mtp.", "mtp_", "model.visual."}, {}},
       make_qwen3_5},
      {"llama", {"llama"}, "", "LlamaForCausalLM", {{}, {".rotary_emb.inv_freq"}}, make_llama},
  };
  return table;
}

void ignore_common_keys(ConfigReader& config) {
  // What says nothing about the mathematics of a greedy forward: bookkeeping, training, generation, token ids.
  config.ignore({"architectures",
                 "model_type",
                 "transformers_version",
                 "torch_dtype",
                 "dtype",
                 "use_cache",
                 "initializer_range",
                 "attention_dropout",
                 "max_position_embeddings",
                 "output_attentions",
                 "output_hidden_states",
                 "return_dict",
                 "id2label",
                 "label2id",
                 "problem_type",
                 "finetuning_task",
                 "task_specific_params",
                 "tokenizer_class",
                 "prefix",
                 "name_or_path",
                 "pretraining_tp",
                 "use_bfloat16",
                 "torchscript",
                 "pruned_heads",
                 "gradient_checkpointing",
                 "keys_to_ignore_at_inference",
                 "hidden_dropout",
                 "embd_pdrop",
                 "resid_pdrop",
                 "attn_implementation",
                 "use_flash_attention",
                 "is_llama_config",
                 "transformers.js_config",
                 "model_max_length"});
  // What older releases wrote of generation.
  config.ignore({"temperature",
                 "top_p",
                 "top_k",
                 "typical_p",
                 "do_sample",
                 "max_length",
                 "min_length",
                 "num_beams",
                 "num_beam_groups",
                 "num_return_sequences",
                 "early_stopping",
                 "diversity_penalty",
                 "length_penalty",
                 "repetition_penalty",
                 "encoder_no_repeat_ngram_size",
                 "no_repeat_ngram_size",
                 "bad_words_ids",
                 "exponential_decay_length_penalty",
                 "remove_invalid_values",
                 "begin_suppress_tokens",
                 "suppress_tokens",
                 "output_scores",
                 "return_dict_in_generate",
                 "tf_legacy_loss"});
  config.ignore_suffix("_token_id");
  config.ignore_suffix("_token_ids");
  config.expect("rope_interleaved", false);
  config.expect("is_causal", true);
  config.expect("is_decoder", false);
  config.expect("is_encoder_decoder", false);
  config.expect("add_cross_attention", false);
  config.expect("tie_encoder_decoder", false);
  config.expect("cross_attention_hidden_size", nullptr);
  config.expect("chunk_size_feed_forward", 0);
  config.expect("sliding_window", nullptr);
  config.expect("use_sliding_window", false);
}

namespace {

/// tie_word_embeddings of a composite config may stand outside, inside, or both.
bool composite_tie(ConfigReader& outer, std::optional<bool> inner_flag) {
  const auto flag = outer.find<bool>("tie_word_embeddings");
  if (flag && inner_flag && *flag != *inner_flag) {
    outer.fail("tie_word_embeddings",
               fmt::format("is {} but /text_config/tie_word_embeddings is {}: expected one value", *flag, *inner_flag));
  }
  return flag.value_or(inner_flag.value_or(false));
}

}  // namespace

BuiltModel build_model(const nlohmann::json& config, const std::string& where) {
  ConfigReader outer(config, where);
  const auto type = outer.require<std::string>("model_type");
  if (outer.has("quantization_config")) {
    outer.fail("quantization_config", "quantized checkpoints are not implemented; use the unquantized weights");
  }
  if (outer.has("auto_map"))
    outer.fail("auto_map", "asks for remote code, which never runs here; expected a plain transformers model");

  std::vector<std::string> known;
  for (const auto& family : families()) {
    BuiltModel built{&family, nullptr, false, {}};
    if (std::find(family.model_types.begin(), family.model_types.end(), type) != family.model_types.end()) {
      ignore_common_keys(outer);
      built.model = family.make(outer, &built.tie);
      outer.finish();
      built.settings = outer.settings();
      return built;
    }
    if (!family.composite.empty() && type == family.composite) {
      auto inner = outer.child("text_config");
      const auto inner_type = inner.find<std::string>("model_type");
      if (inner_type &&
          std::find(family.model_types.begin(), family.model_types.end(), *inner_type) == family.model_types.end()) {
        inner.fail("model_type", fmt::format("\"{}\" is not implemented (implemented: {})", *inner_type,
                                             fmt::join(family.model_types, ", ")));
      }
      ignore_common_keys(outer);
      ignore_common_keys(inner);
      outer.ignore({"vision_config", "language_model_only"});
      const bool stated = inner.has("tie_word_embeddings");
      built.model = family.make(inner, &built.tie);
      built.tie = composite_tie(outer, stated ? std::optional(built.tie) : std::nullopt);
      inner.finish();
      outer.finish();
      built.settings = outer.settings();
      return built;
    }
    known.insert(known.end(), family.model_types.begin(), family.model_types.end());
    if (!family.composite.empty()) known.push_back(family.composite);
  }
  outer.fail("model_type", fmt::format("\"{}\" is not implemented (implemented: {})", type, fmt::join(known, ", ")));
}

}  // namespace lockstep
