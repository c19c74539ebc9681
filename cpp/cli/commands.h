// The commands of lockstep-native: the same jobs and exit codes as `lockstep`, with no Python on the machine.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace lockstep::cli {

/// What a command does once its options are read -> exit code: 0 passes, 1 does not, 2 could not judge.
using Action = std::function<int()>;

/// Each adds its command to `app` and sets `chosen` when it is the one that was asked for.
void add_bisect(CLI::App& app, Action& chosen);
void add_check(CLI::App& app, Action& chosen);
void add_compare(CLI::App& app, Action& chosen);
void add_export(CLI::App& app, Action& chosen);
void add_generate(CLI::App& app, Action& chosen);
void add_names(CLI::App& app, Action& chosen);
void add_tokenize(CLI::App& app, Action& chosen);
void add_verify(CLI::App& app, Action& chosen);

}  // namespace lockstep::cli
