#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/model.h"
#include "cli/output.h"
#include "core/error.h"
#include "io/files.h"
#include "verify/bisect_trace.h"

namespace lockstep::cli {

namespace {

struct Options {
  std::string model, candidate, points = "sublayer";
  std::optional<std::string> reference, json_file, junit;
  bool thorough = false, quiet = false;
};

int run(const Options& options) {
  if (options.points != "sublayer" && options.points != "all")
    throw InputError(fmt::format("--points {}: expected sublayer or all", options.points));
  const auto folder = resolve_model(options.model);
  check_outputs({{"--json", options.json_file}, {"--junit", options.junit}},
                {folder, options.candidate, options.reference.value_or(options.candidate)});
  const auto candidate = std::make_shared<const Trace>(Trace::open(options.candidate));
  const auto reference = options.reference ? std::make_shared<const Trace>(Trace::open(*options.reference)) : nullptr;
  const auto data = [&] {
    const MovingLine line(options.quiet);
    return bisect_trace(folder, candidate, reference,
                        {options.points == "all", options.thorough, [&](const std::string& text) { line.show(text); }});
  }();
  if (options.json_file) write_text_whole(*options.json_file, report_text(data));
  if (options.junit) write_text_whole(*options.junit, findings_junit(data));
  print_lines(findings_lines(data), options.quiet);
  return data["exit_code"].get<int>();
}

}  // namespace

void add_bisect(CLI::App& app, Action& chosen) {
  const auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand(
      "bisect", "Where is an engine wrong, and why? From its trace alone, against a float64 truth of the checkpoint");
  command->add_option("model", options->model, kModelHelp);
  command->add_option("--candidate", options->candidate, "The trace of the engine that is judged")->required();
  command->add_option("--reference", options->reference,
                      "A trace of Hugging Face on the same inputs: it is judged first, and drift is measured from it");
  command->add_option("--points", options->points, "sublayer, or all: judges the values inside of every sublayer too")
      ->capture_default_str();
  command->add_flag("--thorough", options->thorough, "Every hypothesis on every sublayer, with what each came to");
  command->add_option("--json", options->json_file, "Write the findings here, also when they are bad");
  command->add_option("--junit", options->junit, "Write JUnit XML here, also when they are bad");
  command->add_flag("--quiet", options->quiet, "No progress, no table: the closing line alone");
  command->callback([=, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace lockstep::cli
