#include "cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <map>

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

void check_outputs(const std::vector<std::pair<std::string, std::optional<std::string>>>& outputs,
                   const std::vector<std::string>& inputs) {
  std::map<fs::path, std::string> option_of;
  for (const auto& [option, path] : outputs) {
    check_writable(option, path, inputs);
    if (!path) continue;
    std::error_code ec;
    const auto [other, first] = option_of.emplace(fs::weakly_canonical(fs::absolute(*path), ec), option);
    if (!first)
      throw InputError(fmt::format("{} and {} both name {}: expected two files", other->second, option, *path));
  }
}

std::string printable(const std::string& text) {
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters as well, two bytes each in UTF-8
    const bool second = c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (second) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
    } else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
      shown += fmt::format("\\x{:02x}", c);
    } else {
      shown += text[i];
    }
  }
  return shown;
}

void print_lines(const std::vector<std::string>& lines, bool quiet) {
  for (size_t i = quiet && !lines.empty() ? lines.size() - 1 : 0; i < lines.size(); ++i) {
    std::cout << printable(lines[i]) << '\n';
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
  if (moves_) std::cerr << "\r\033[K" << printable(text) << std::flush;
}

}  // namespace lockstep::cli
