#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/error.h"
#include "io/files.h"
#include "verify/compare_traces.h"

namespace lockstep::cli {

namespace {

struct Options {
  std::string a, b;
  Gate gate;
  bool bitwise = false, quiet = false;
  std::optional<std::string> json_file;
};

int run(const Options& options) {
  for (const auto& [name, value] : {std::pair("--atol", options.gate.atol), std::pair("--rtol", options.gate.rtol)}) {
    if (!(value >= 0) || std::isinf(value))
      throw InputError(fmt::format("{} {}: expected a number from 0 up", name, value));
  }
  check_writable("--json", options.json_file, {options.a, options.b});
  const auto start = std::chrono::steady_clock::now();
  const auto a = Trace::open(options.a), b = Trace::open(options.b);
  auto data = compare_traces({a, options.a}, {b, options.b}, options.gate, options.bitwise);
  data["seconds"] = {{"total", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()}};
  if (options.json_file) write_text_whole(*options.json_file, report_text(data));
  print_lines(comparison_lines(data), options.quiet);
  return data["exit_code"].get<int>();
}

}  // namespace

void add_compare(CLI::App& app, Action& chosen) {
  const auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("compare", "Two traces, point by point: do the numbers agree?");
  command->add_option("a", options->a, "The trace that is right")->required();
  command->add_option("b", options->b, "The trace that is judged")->required();
  command->add_option("--atol", options->gate.atol, "Largest |difference| that agrees")->capture_default_str();
  command->add_option("--rtol", options->gate.rtol, "Added to atol: rtol times |a|")->capture_default_str();
  command->add_flag("--bitwise", options->bitwise, "Only the same bits pass");
  command->add_option("--json", options->json_file, "Write the comparison here, also when it is bad");
  command->add_flag("--quiet", options->quiet, "The closing line alone");
  command->callback([=, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace lockstep::cli
