#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "cli/commands.h"
#include "cli/ids.h"
#include "cli/model.h"
#include "core/error.h"
#include "core/json.h"
#include "text/open.h"
#include "text/utf8.h"

namespace lockstep::cli {

namespace {

struct Options {
  std::vector<std::string> words;
  std::string file, decode;
  bool has_file = false, has_decode = false, pieces = false;
};

/// -> MODEL and TEXT, either of which may be left out.
std::pair<std::string, std::string> model_and_text(const Options& options) {
  const auto& words = options.words;
  if (options.has_file || options.has_decode) {
    if (words.size() > 1) {
      throw InputError("expected MODEL alone beside --file or --decode, found a text as well");
    }
    return {words.empty() ? "" : words[0], ""};
  }
  if (words.empty()) throw InputError("expected TEXT, --file FILE or --decode IDS");
  if (words.size() > 2) {
    throw InputError(
        fmt::format("expected MODEL TEXT, found {} arguments; put a text with spaces in quotes", words.size()));
  }
  return {words.size() == 2 ? words[0] : "", words.back()};
}

std::string read_whole(const std::string& file) {
  if (file == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::error_code ec;
  if (std::filesystem::is_directory(file, ec)) throw LoadError(fmt::format("{}: cannot be read: Is a directory", file));
  std::ifstream in(file, std::ios::binary);
  if (!in) throw LoadError(fmt::format("{}: cannot be read: {}", file, std::strerror(errno)));
  return {std::istreambuf_iterator<char>(in), {}};
}

int tokenize(const Options& options) {
  if (options.has_decode && (options.has_file || options.pieces)) {
    throw InputError("--decode stands alone: leave out --file and --pieces");
  }
  const auto [model, text] = model_and_text(options);
  const auto tokenizer = open_tokenizer(resolve_model(model));
  if (options.has_decode) {
    std::cout << tokenizer->decode(ids_of(options.decode, "--decode"), false) << '\n';
    return 0;
  }
  const auto given = valid_utf8(options.has_file ? read_whole(options.file) : text);
  const char* between = "";
  for (const auto id : tokenizer->encode(given, true)) {
    std::cout << between << id;
    between = " ";
  }
  std::cout << '\n';
  if (!options.pieces) return 0;
  for (const auto& p : tokenizer->pieces(given, true)) {
    std::cout << p.id << '\t' << nlohmann::json(p.text).dump() << '\t' << p.begin << ':' << p.end << '\n';
  }
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Action& chosen) {
  const auto options = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("tokenize", "Text to ids; the ids alone are line 1. A text, a file, or ids back to text");
  command->add_option("words", options->words, std::string("TEXT, or MODEL TEXT. ") + kModelHelp);
  auto* file = command->add_option("--file", options->file,
                                   "Read the text from here, whole, nothing stripped; - is standard input");
  auto* decode =
      command->add_option("--decode", options->decode, "The other way: print the text of these ids, like 1,2,3");
  command->add_flag("--pieces", options->pieces, "Also print each id, its piece, and the characters it came from");
  command->callback([=, &chosen] {
    options->has_file = file->count() > 0, options->has_decode = decode->count() > 0;
    chosen = [options] { return tokenize(*options); };
  });
}

}  // namespace lockstep::cli
