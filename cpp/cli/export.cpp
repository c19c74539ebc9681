#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/model.h"
#include "cli/output.h"
#include "core/error.h"
#include "core/tensor_text.h"
#include "io/files.h"
#include "verify/golden_export.h"

namespace lockstep::cli {

namespace {

struct Options {
  std::string model, out, golden, keep = "all";
  std::optional<std::string> dtype, max_shard_size, accept, json_file;
  bool stream = false, quiet = false;
};

int run(const Options& options) {
  GoldenExportOptions wanted;
  if (options.dtype) {
    wanted.plan.dtype = run_dtype(*options.dtype);
    if (!wanted.plan.dtype)
      throw InputError(fmt::format("--dtype {}: expected float32, bfloat16 or float16", *options.dtype));
  }
  if (options.keep != "all" && options.keep != "text")
    throw InputError(fmt::format("--keep {}: expected all or text", options.keep));
  if (options.accept && *options.accept != "rounding")
    throw InputError(fmt::format("--accept {}: expected rounding", *options.accept));
  if (options.max_shard_size) wanted.plan.max_shard_size = parse_size(*options.max_shard_size);
  wanted.plan.text_only = options.keep == "text";
  wanted.accept_rounding = options.accept.has_value(), wanted.stream = options.stream;
  const auto folder = resolve_model(options.model);
  check_writable("--json", options.json_file, {folder, options.golden, options.out});
  const auto golden = open_golden(options.golden);
  const auto data = [&] {
    const MovingLine line(options.quiet);
    wanted.say = [&](const std::string& text) { line.show(text); };
    return export_by_golden(folder, options.out, golden, wanted);
  }();
  if (options.json_file) write_text_whole(*options.json_file, report_text(data));
  print_lines(golden_export_lines(data, options.out), options.quiet);
  return data["exit_code"].get<int>();
}

}  // namespace

void add_export(CLI::App& app, Action& chosen) {
  const auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand(
      "export", "Writes a checkpoint of weights that replay a golden trace, with a manifest of every byte");
  command->add_option("model", options->model, kModelNeeded)->required();
  command->add_option("out", options->out, "The folder to make; it must be absent or empty")->required();
  command->add_option("--golden", options->golden, "What `lockstep trace MODEL --golden -o FILE` wrote")->required();
  command->add_option("--dtype", options->dtype,
                      "float32, bfloat16 or float16: converts the model's parameters; their own if left out");
  command->add_option("--max-shard-size", options->max_shard_size,
                      "Bytes of tensors in one file, like 5GB; as many files as the model has if left out");
  command->add_option("--keep", options->keep, "all, or text: leaves out tensors that no text model computes with");
  command->add_option("--accept", options->accept,
                      "rounding: what the local check against float64 calls rounding passes too; it is recorded");
  command->add_flag("--stream", options->stream, "One layer's weights in memory at a time");
  command->add_option("--json", options->json_file, "Write the whole report here, also when it is bad");
  command->add_flag("--quiet", options->quiet, "No progress: the closing line alone");
  command->callback([=, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace lockstep::cli
