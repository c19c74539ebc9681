#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/ids.h"
#include "cli/model.h"
#include "core/error.h"
#include "core/tensor_text.h"
#include "generate/fast_arithmetic.h"
#include "generate/generation_config.h"
#include "generate/greedy.h"
#include "models/mirror.h"
#include "text/open.h"
#include "text/stream.h"
#include "text/utf8.h"

namespace lockstep::cli {

namespace {

struct Options {
  std::string model, dtype = "float32", attn = "sdpa", variant = "5.18";
  std::optional<std::string> prompt, ids;
  std::optional<int64_t> max_new_tokens, min_new_tokens, threads;
  bool rendered = false, fast = false, quiet = false;
};

void note(const std::string& text) { std::cerr << "lockstep-native: " << text << '\n'; }

std::vector<int64_t> prompt_ids(const Options& options, const Tokenizer* tokenizer) {
  if (options.ids) return ids_of(*options.ids, "--ids");
  if (options.prompt->empty()) throw InputError("--prompt: expected some text, found an empty prompt");
  auto ids = tokenizer->encode(valid_utf8(*options.prompt), /*special=*/!options.rendered);
  if (ids.empty()) throw InputError("--prompt: the tokenizer makes no ids of it");
  const auto bos = tokenizer->bos();
  if (bos && ids.size() > 1 && ids[0] == *bos && ids[1] == *bos) {
    note(fmt::format("note: the prompt begins with two BOS tokens ({}): leave one out of its text", *bos));
  }
  return ids;
}

/// A tokenizer, which ids can do without: they are then shown as numbers.
std::unique_ptr<Tokenizer> tokenizer_of(const Options& options, const std::string& folder) {
  try {
    return open_tokenizer(folder);
  } catch (const LoadError& error) {
    if (options.ids) return nullptr;
    throw InputError(fmt::format("{}; give --ids instead of --prompt", error.what()));
  }
}

int generate(const Options& options) {
  if (options.prompt.has_value() == options.ids.has_value()) throw InputError("expected --prompt TEXT or --ids 1,2,3");
  const auto dtype = run_dtype(options.dtype);
  if (!dtype) throw InputError(fmt::format("--dtype {}: expected float32, bfloat16 or float16", options.dtype));
  if (options.attn != "sdpa" && options.attn != "eager") {
    throw InputError(fmt::format("--attn {}: expected sdpa or eager", options.attn));
  }
  if (options.threads) {
    if (*options.threads < 1 || *options.threads > 1024) {
      throw InputError(fmt::format("--threads {}: expected 1 to 1024", *options.threads));
    }
    at::set_num_threads(static_cast<int>(*options.threads));
  }
  const at::NoGradGuard no_grad;
  const auto folder = resolve_model(options.model);
  const auto mirror = Mirror::open(folder);
  mirror->bind(*dtype);
  const auto config = GenerationConfig::read(folder, mirror->checkpoint().config());
  for (const auto& line : config.notes) note("note: " + line);
  const auto tokenizer = tokenizer_of(options, folder);
  const auto prompt = prompt_ids(options, tokenizer.get());
  const auto ids = at::tensor(prompt, at::kLong).unsqueeze(0);

  GreedyOptions greedy_options{.stop = config.stop, .pad = config.pad};
  greedy_options.max_new_tokens = config.new_tokens(static_cast<int64_t>(prompt.size()), options.max_new_tokens);
  greedy_options.min_new_tokens = options.min_new_tokens.value_or(config.min_new_tokens.value_or(0));
  std::optional<FastArithmetic> fast;
  if (options.fast) fast.emplace(*mirror);
  Decoding decoding(mirror->model(), Variant::named(options.variant), options.attn == "sdpa" ? Attn::sdpa : Attn::eager,
                    fast ? *fast : hf_arithmetic());
  std::optional<TextStream> text;
  if (tokenizer) text.emplace(*tokenizer);
  bool open_line = false;  // the text has no line break of its own at the end
  const auto show = [&](const std::string& piece) {
    if (!piece.empty()) open_line = piece.back() != '\n';
    std::cout << piece << std::flush;
  };
  const auto done = greedy(decoding, ids, {}, greedy_options, [&](const GreedyStep& step) {
    const auto token = step.tokens[0].item<int64_t>();
    show(text ? text->add(token) : fmt::format("{} ", token));
    return true;
  });
  if (text) show(text->finish());
  if (open_line) std::cout << '\n';
  mirror->checkpoint().check_unchanged();
  if (!options.quiet) {
    auto speed = fmt::format("mirror {:.1f} tokens/s prefill", double(prompt.size()) / done.prefill_seconds);
    if (done.steps > 1) speed += fmt::format(", {:.1f} tokens/s decode", double(done.steps - 1) / done.decode_seconds);
    note(speed);
  }
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& chosen) {
  const auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("generate", "Continues a prompt greedily; the text streams to stdout");
  command->add_option("model", options->model, kModelHelp);
  command->add_option("--prompt", options->prompt, "The text to continue");
  command->add_flag(
      "--rendered", options->rendered,
      "The prompt is an already rendered chat prompt: nothing is put around it. (Chat templates are Jinja "
      "and need Python: `lockstep generate --chat` renders them)");
  command->add_option("--ids", options->ids, "Token ids instead of a text, like 1,2,3");
  command->add_option("--max-new-tokens", options->max_new_tokens,
                      "How many tokens at most; else as the checkpoint says, else 20");
  command->add_option("--min-new-tokens", options->min_new_tokens, "No stop token before so many");
  command->add_option("--dtype", options->dtype, "float32, bfloat16 or float16")->capture_default_str();
  command->add_option("--attn", options->attn, "sdpa or eager")->capture_default_str();
  command->add_option("--variant", options->variant, "The release of transformers to follow: 5.10, 5.18 or 5.24")
      ->capture_default_str();
  command->add_flag(
      "--fast", options->fast,
      "Read weights as the file holds them, in bfloat16: a float32 run decodes up to twice as fast, in other bits");
  command->add_option("--threads", options->threads, "Threads; the machine's cores if left out");
  command->add_flag("--quiet", options->quiet, "The text alone");
  command->callback([=, &chosen] { chosen = [options] { return generate(*options); }; });
}

}  // namespace lockstep::cli
