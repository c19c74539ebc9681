#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/model.h"
#include "cli/output.h"
#include "models/mirror.h"

namespace lockstep::cli {

namespace {

int names(const std::string& model) {
  const auto rows = list_names(resolve_model(model));
  size_t width = 10;
  for (const auto& row : rows) width = std::max({width, row.source.size(), row.parameter.size()});
  std::vector<std::string> lines{
      fmt::format("{:{}}  {:{}}  {:9}  status  shape", "checkpoint", width, "mirror", width, "dtype")};
  int64_t fine = 0;
  for (const auto& row : rows) {
    lines.push_back(fmt::format("{:{}}  {:{}}  {:9}  {}  [{}]", row.source, width, row.parameter, width, row.dtype,
                                row.status, fmt::join(row.shape, ", ")));
    fine += row.problem.empty();
  }
  for (const auto& row : rows) {
    if (!row.problem.empty()) lines.push_back(row.problem);
  }
  lines.push_back(fmt::format("{} of {} names fit", fine, rows.size()));
  print_lines(lines, false);
  return fine == static_cast<int64_t>(rows.size()) ? 0 : 1;
}

}  // namespace

void add_names(CLI::App& app, Action& chosen) {
  const auto model = std::make_shared<std::string>();
  auto* command = app.add_subcommand("names", "Every tensor of the checkpoint beside the mirror's parameter");
  command->add_option("model", *model, kModelHelp);
  command->callback([=, &chosen] { chosen = [model] { return names(*model); }; });
}

}  // namespace lockstep::cli
