#include "generate/generation_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "core/config_reader.h"
#include "core/error.h"
#include "core/json.h"

namespace lockstep {

namespace {

using nlohmann::json;

constexpr int64_t kDefaultNewTokens = 20;  // transformers' own where nobody says a length

/// A setting that is only there in another kind of decoding, or that changes a logit: it must be absent, null or one of
/// these values.
struct Neutral {
  const char* key;
  json values;  // a list
};

const std::vector<Neutral>& neutral_settings() {
  static const std::vector<Neutral> table = {
      {"num_beams", {1}},
      {"num_beam_groups", {1}},
      {"diversity_penalty", {0}},
      {"num_return_sequences", {1}},
      {"penalty_alpha", {0}},
      {"dola_layers", json::array()},
      {"constraints", json::array()},
      {"force_words_ids", json::array()},
      {"use_mtp", {false}},
      {"prompt_lookup_num_tokens", json::array()},
      {"assistant_early_exit", json::array()},
      {"is_assistant", {false}},
      {"min_length", {0}},
      {"max_time", json::array()},
      {"stop_strings", json::array()},
      {"repetition_penalty", {1}},
      {"encoder_repetition_penalty", {1}},
      {"no_repeat_ngram_size", {0}},
      {"encoder_no_repeat_ngram_size", {0}},
      {"bad_words_ids", json::array()},
      {"sequence_bias", json::array()},
      {"suppress_tokens", json::array({json::array()})},
      {"begin_suppress_tokens", json::array({json::array()})},
      {"forced_bos_token_id", json::array()},
      {"forced_eos_token_id", json::array()},
      {"force_bos_token_to_be_generated", {false}},
      {"exponential_decay_length_penalty", json::array()},
      {"guidance_scale", {1}},
      {"watermarking_config", json::array()},
      {"renormalize_logits", {false}},
      {"remove_invalid_values", {false}},
      {"token_healing", {false}},
      {"cache_implementation", {"dynamic", "hybrid", "offloaded"}},  // hybrid is dropped by transformers too
      {"prefill_chunk_size", json::array()},
  };
  return table;
}

/// Settings of sampling: without do_sample they do nothing, with it they are overruled together.
constexpr const char* kSampling[] = {"temperature", "top_k",     "top_p",          "min_p",
                                     "top_h",       "typical_p", "epsilon_cutoff", "eta_cutoff"};

/// The settings by key, from one object or, where that has none, from the next: a config.json may hold them at the top
/// or in its text config.
class Source {
 public:
  void add(const json& object, const std::string& where, const std::string& pointer = "") {
    objects_.push_back(&object), readers_.emplace_back(object, where, pointer);
  }
  ConfigReader& reader(const std::string& key) { return readers_[holder(key)]; }
  /// The value itself, or null.
  const json& value(const std::string& key) {
    static const json kNull;
    const auto i = holder(key);
    readers_[i].ignore({key.c_str()});
    const auto it = objects_[i]->find(key);
    return it == objects_[i]->end() ? kNull : *it;
  }

 private:
  size_t holder(const std::string& key) const {
    for (size_t i = 0; i < readers_.size(); ++i) {
      if (readers_[i].has(key)) return i;
    }
    return 0;
  }
  std::vector<const json*> objects_;
  std::vector<ConfigReader> readers_;
};

std::string shown(const json& value) {
  auto text = value.dump();
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

bool is_id(const json& value) {
  return value.is_number_integer() && value >= 0 && value <= std::numeric_limits<int32_t>::max();
}

std::vector<int64_t> read_stop(Source& source) {
  const auto& value = source.value("eos_token_id");
  if (value.is_null()) return {};
  const auto list = value.is_array() ? value : json::array({value});
  if (list.empty() || !std::all_of(list.begin(), list.end(), is_id)) {
    source.reader("eos_token_id")
        .fail("eos_token_id", fmt::format("expected a token id or a list of them, found {}", shown(value)));
  }
  return list.get<std::vector<int64_t>>();
}

std::optional<int64_t> read_count(Source& source, const std::string& key, int64_t least) {
  auto& reader = source.reader(key);
  const auto value = reader.find<int64_t>(key);
  if (value && (*value < least || *value > std::numeric_limits<int32_t>::max()))
    reader.fail(key, fmt::format("expected an integer from {} up, found {}", least, *value));
  return value;
}

void refuse_what_changes_tokens(Source& source, const std::string& where) {
  Problems problems;
  for (const auto& [key, values] : neutral_settings()) {
    const auto& value = source.value(key);
    if (value.is_null() || std::find(values.begin(), values.end(), value) != values.end()) continue;
    std::vector<std::string> allowed;
    for (const auto& v : values) allowed.push_back(v.dump());
    problems.add(fmt::format("{}: {} is not implemented (plain greedy decoding has {}); {} it and compare with that",
                             source.reader(key).at(key), shown(value),
                             allowed.empty() ? "no such setting" : fmt::format("{}", fmt::join(allowed, ", ")),
                             allowed.empty() ? "remove" : "change or remove"));
  }
  problems.raise<LoadError>(where);
}

/// do_sample is overruled, and what goes with it named in one line.
void note_sampling(Source& source, GenerationConfig& config) {
  const bool samples = source.reader("do_sample").find<bool>("do_sample").value_or(false);
  std::vector<std::string> with;
  for (const auto* key : kSampling) {
    if (const auto value = source.reader(key).find<double>(key)) with.push_back(fmt::format("{} {}", key, *value));
  }
  if (samples) {
    config.notes.push_back(fmt::format("{}: do_sample{} is overruled: decoding is greedy", config.file,
                                       with.empty() ? "" : fmt::format(" ({})", fmt::join(with, ", "))));
  }
  if (!source.reader("use_cache").find<bool>("use_cache").value_or(true)) {
    config.notes.push_back(fmt::format("{}: use_cache false is overruled: decoding goes over the cache", config.file));
  }
}

/// What changes no greedy token: outputs, lengths of beams, helpers of modes that are refused, bookkeeping.
void ignore_the_rest(ConfigReader& reader) {
  reader.ignore({"bos_token_id",
                 "decoder_start_token_id",
                 "early_stopping",
                 "length_penalty",
                 "low_memory",
                 "max_cache_len",
                 "cache_config",
                 "output_attentions",
                 "output_hidden_states",
                 "output_scores",
                 "output_logits",
                 "return_dict_in_generate",
                 "num_assistant_tokens",
                 "num_assistant_tokens_schedule",
                 "assistant_confidence_threshold",
                 "assistant_lookbehind",
                 "assistant_ensemble_weight",
                 "target_lookbehind",
                 "max_matching_ngram_size",
                 "speculation_type",
                 "compile_config",
                 "disable_compile",
                 "continuous_batching_config",
                 "transformers_version"});
}

}  // namespace

GenerationConfig GenerationConfig::read(const std::string& in, const json& model) {
  const auto folder = in + "/";
  Source by_model;
  by_model.add(model, folder + "config.json");
  for (const std::string name : {"decoder", "generator", "text_config"}) {  // the first that holds something
    const auto it = model.find(name);
    if (it == model.end() || !it->is_object() || it->empty()) continue;
    by_model.add(*it, folder + "config.json", "/" + name);
    break;
  }

  GenerationConfig config;
  config.file = "generation_config.json";
  Source own;
  json settings;
  std::error_code ec;
  const bool stated = std::filesystem::exists(folder + config.file, ec);
  if (stated) {
    settings = parse_json(read_text(folder + config.file), folder + config.file);
    own.add(settings, folder + config.file);
  } else {
    config.file = "config.json";
  }
  auto& source = stated ? own : by_model;

  refuse_what_changes_tokens(source, folder + config.file);
  config.stop = read_stop(source);
  config.pad = source.reader("pad_token_id").find<int64_t>("pad_token_id");
  if (!config.pad && !config.stop.empty()) config.pad = config.stop.front();
  config.max_new_tokens = read_count(source, "max_new_tokens", 1);
  config.min_new_tokens = read_count(source, "min_new_tokens", 0);
  config.max_length = read_count(source, "max_length", 1);
  note_sampling(source, config);
  if (stated) {
    auto& reader = own.reader("");
    ignore_the_rest(reader);
    reader.finish();
  }
  config.max_position_embeddings = by_model.reader("max_position_embeddings").find<int64_t>("max_position_embeddings");
  return config;
}

int64_t GenerationConfig::new_tokens(int64_t prompt, std::optional<int64_t> asked) const {
  if (asked) {
    if (*asked < 1) throw InputError(fmt::format("max_new_tokens {}: expected 1 or more", *asked));
    return *asked;
  }
  if (max_new_tokens) return *max_new_tokens;
  auto whole = prompt + kDefaultNewTokens;
  if (max_length) {
    whole = *max_length;
  } else if (max_position_embeddings) {
    whole = std::min(whole, *max_position_embeddings);
  }
  if (prompt >= whole) {
    throw InputError(fmt::format("the prompt has {} tokens, but {}; say max_new_tokens", prompt,
                                 max_length ? fmt::format("max_length in {} is {}", file, whole)
                                            : fmt::format("max_position_embeddings in config.json is {}", whole)));
  }
  return whole - prompt;
}

}  // namespace lockstep
