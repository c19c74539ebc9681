// lockstep-native: no Python on the machine.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include "cli/commands.h"
#include "cli/output.h"
#include "core/error.h"
#include "core/vector_math.h"

namespace {

constexpr int kCouldNotJudge = 2;

/// libgomp reads it when it is loaded, which is before main: spinning threads would slow everything beside them down.
void wait_passively(char** arguments) {
  if (std::getenv("OMP_WAIT_POLICY")) return;
  ::setenv("OMP_WAIT_POLICY", "PASSIVE", 1);
  ::execv("/proc/self/exe", arguments);  // comes back only if it cannot; then it is slower, and right
}

using lockstep::cli::printable;

int run(int count, char** arguments) {
  CLI::App app(
      "Lockstep without Python: the jobs of the command `lockstep` that need no Python, with its output and exit "
      "codes.\n"
      "Exit codes: 0 passes, 1 does not, 2 could not judge.",
      "lockstep-native");
  app.require_subcommand(1);
  lockstep::cli::Action chosen;
  lockstep::cli::add_bisect(app, chosen);
  lockstep::cli::add_check(app, chosen);
  lockstep::cli::add_compare(app, chosen);
  lockstep::cli::add_export(app, chosen);
  lockstep::cli::add_generate(app, chosen);
  lockstep::cli::add_names(app, chosen);
  lockstep::cli::add_tokenize(app, chosen);
  lockstep::cli::add_verify(app, chosen);
  try {
    app.parse(count, arguments);
    lockstep::settle_vector_math();
    return chosen();
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::Error& error) {
    std::cerr << "lockstep-native: error: " << printable(error.what()) << " (--help lists the options)\n";
  } catch (const lockstep::Error& error) {
    std::cerr << "lockstep-native: error: " << printable(error.what()) << '\n';
  } catch (const std::exception& error) {
    std::cerr << "lockstep-native: error: unexpected: " << printable(error.what()) << '\n';
  }
  return kCouldNotJudge;
}

}  // namespace

int main(int count, char** arguments) {
  wait_passively(arguments);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on files is an error that is said, not an end
  const int code = run(count, arguments);
  std::cout.flush();
  return code;
}
