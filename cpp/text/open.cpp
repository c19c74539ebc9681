#include "text/open.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/config_reader.h"
#include "core/json.h"
#include "text/sentencepiece_tokenizer.h"
#include "text/tokenizer_json.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

/// A model file adds neither BOS nor EOS, and transformers 5.18 neither, unless tokenizer_config.json says so. (Beside
/// a tokenizer.json it does not heed these keys.)
SentencePieceRules rules_of(const fs::path& folder) {
  SentencePieceRules rules;
  const auto file = folder / "tokenizer_config.json";
  if (!fs::exists(file)) return rules;
  const auto json = parse_json(read_text(file.string()), file.string());
  ConfigReader config(json, "tokenizer_config.json");
  rules.add_bos = config.find<bool>("add_bos_token").value_or(false);
  rules.add_eos = config.find<bool>("add_eos_token").value_or(false);
  return rules;
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& folder) {
  const fs::path at(folder);
  std::error_code ec;
  if (!fs::is_directory(at, ec)) throw LoadError(fmt::format("{}: expected a folder with a tokenizer", folder));
  if (fs::exists(at / "tokenizer.json", ec)) return open_tokenizer_json((at / "tokenizer.json").string());
  if (fs::exists(at / "tokenizer.model", ec)) {
    return open_sentencepiece((at / "tokenizer.model").string(), rules_of(at));
  }
  throw LoadError(fmt::format("{}: no tokenizer.json and no tokenizer.model; expected one of them", folder));
}

}  // namespace lockstep
