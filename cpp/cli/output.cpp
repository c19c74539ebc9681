#include "cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "core/error.h"

namespace lockstep::cli {

namespace fs = std::filesystem;

void check_writable(const std::string& option, const std::optional<std::string>& path,
                    const std::vector<std::string>& inputs) {
  if (!path) return;
  std::error_code ec;
  const auto real = fs::weakly_canonical(fs::absolute(*path), ec);
  for (const auto& input : inputs) {
    const auto used = fs::canonical(input, ec);
    if (ec) continue;
    for (auto up = real; !up.empty(); up = up.parent_path()) {
      if (up == used) {
        throw InputError(
            fmt::format("{} {}: it would overwrite what is read ({}); name another file", option, *path, input));
      }
      if (up == up.parent_path()) break;
    }
  }
  if (fs::is_directory(real, ec))
    throw InputError(fmt::format("{} {}: expected a file, found a folder", option, *path));
  const auto folder = fs::absolute(*path).parent_path();
  if (!fs::is_directory(folder, ec)) {
    throw InputError(fmt::format("{} {}: the folder {} does not exist", option, *path, folder.string()));
  }
}

std::string report_text(const nlohmann::json& data) {
  nlohmann::ordered_json ordered;
  for (const char* key : {"format_version", "command", "verdict", "model", "pedigree", "seconds", "exit_code"}) {
    if (const auto it = data.find(key); it != data.end()) ordered[key] = *it;
  }
  for (const auto& [key, value] : data.items()) {
    if (!ordered.contains(key)) ordered[key] = value;
  }
  return ordered.dump(1) + "\n";
}

MovingLine::MovingLine(bool quiet) : moves_(!quiet && ::isatty(STDERR_FILENO)) {}

void MovingLine::show(const std::string& text) const {
  if (moves_) std::cerr << "\r\033[K" << text << std::flush;
}

}  // namespace lockstep::cli
