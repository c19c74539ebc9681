#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/model.h"
#include "cli/output.h"
#include "core/error.h"
#include "io/files.h"
#include "verify/replay.h"

namespace lockstep::cli {

namespace {

struct Options {
  std::string model, golden;
  double atol = 1e-5, rtol = 0;
  bool bitwise = false, stream = false, quiet = false, gate_stated = false;
  std::optional<std::string> accept, json_file, junit;
};

int verify(const Options& options) {
  ReplayOptions wanted;
  for (const auto& [name, value] : {std::pair("--atol", options.atol), std::pair("--rtol", options.rtol)}) {
    if (!(value >= 0) || std::isinf(value))
      throw InputError(fmt::format("{} {}: expected a number from 0 up", name, value));
  }
  if (options.accept && *options.accept != "rounding") {
    throw InputError(fmt::format("--accept {}: expected rounding", *options.accept));
  }
  if (options.accept && options.bitwise)
    throw InputError("--accept rounding and --bitwise: expected at most one of them");
  if (options.gate_stated) wanted.gate = Gate{options.atol, options.rtol};
  const auto folder = resolve_model(options.model);
  check_outputs({{"--json", options.json_file}, {"--junit", options.junit}}, {folder, options.golden});
  wanted.stream = options.stream, wanted.bitwise = options.bitwise, wanted.accept_rounding = options.accept.has_value();
  const auto golden = open_golden(options.golden);
  const auto data = [&] {
    const MovingLine line(options.quiet);
    wanted.say = [&](const std::string& text) { line.show(text); };
    return replay(folder, golden, wanted);
  }();
  if (options.json_file) write_text_whole(*options.json_file, report_text(data));
  if (options.junit) write_text_whole(*options.junit, replay_junit(data));
  print_lines(replay_lines(data), options.quiet);
  return data["exit_code"].get<int>();
}

}  // namespace

void add_verify(CLI::App& app, Action& chosen) {
  const auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand(
      "verify", "Is the mirror on this machine what Hugging Face was when a golden trace was recorded?");
  command->add_option("model", options->model, kModelHelp);
  command->add_option("--golden", options->golden, "What `lockstep trace MODEL --golden -o FILE` wrote")->required();
  auto* atol = command->add_option(
      "--atol", options->atol, "Largest |difference| that passes; left out, only the same bits do on the same machine");
  auto* rtol = command->add_option("--rtol", options->rtol, "Added to atol: rtol times |reference|");
  command->add_flag("--bitwise", options->bitwise, "Only the same bits pass");
  command->add_flag("--stream", options->stream,
                    "One layer's weights in memory at a time: for a model bigger than memory");
  command->add_option("--accept", options->accept,
                      "rounding: what the local check against float64 calls rounding passes too");
  command->add_option("--json", options->json_file, "Write the whole report here, also when it is bad");
  command->add_option("--junit", options->junit, "Write JUnit XML here, also when it is bad");
  command->add_flag("--quiet", options->quiet, "No progress, no table: the closing line alone");
  command->callback([=, &chosen] {
    options->gate_stated = atol->count() + rtol->count() > 0;
    chosen = [options] { return verify(*options); };
  });
}

}  // namespace lockstep::cli
