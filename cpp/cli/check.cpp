#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/model.h"
#include "cli/output.h"
#include "io/files.h"
#include "verify/check.h"

namespace lockstep::cli {

namespace {

constexpr size_t kShown = 20;

struct Options {
  std::string folder;
  std::optional<std::string> source, digest, json_file;
  bool quiet = false;
};

int check(const Options& options) {
  CheckOptions wanted{options.source, options.digest};
  if (wanted.source) wanted.source = resolve_model(*wanted.source);
  check_writable("--json", options.json_file, {options.folder, wanted.source.value_or(options.folder)});
  const auto data = [&] {
    const MovingLine line(options.quiet);
    return check_export(options.folder, wanted, [&](const std::string& text) { line.show(text); });
  }();
  if (options.json_file) write_text_whole(*options.json_file, report_text(data));
  print_lines(check_lines(data, options.quiet ? 0 : kShown), options.quiet);
  return data["exit_code"].get<int>();
}

}  // namespace

void add_check(CLI::App& app, Action& chosen) {
  const auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("check", "Are an export's bytes still those that its manifest states?");
  command->add_option("folder", options->folder, "A folder that `lockstep export` made")->required();
  command->add_option("--source", options->source,
                      "The checkpoint it was made from: every tensor is derived once more");
  command->add_option("--digest", options->digest, "The digest that the export printed: the manifest must have it");
  command->add_option("--json", options->json_file, "Write every file's and tensor's row here");
  command->add_flag("--quiet", options->quiet, "No progress, no rows: the closing line alone");
  command->callback([=, &chosen] { chosen = [options] { return check(*options); }; });
}

}  // namespace lockstep::cli
