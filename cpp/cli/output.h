// What the native commands write: progress on a terminal, and files that must not be what is read.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::cli {

/// Raises InputError, before any work is done, for an output that is one of `inputs` or lies inside of one.
void check_writable(const std::string& option, const std::optional<std::string>& path,
                    const std::vector<std::string>& inputs);

/// Each of `outputs` (option, path) as check_writable; no two may be one file. Raises InputError.
void check_outputs(const std::vector<std::pair<std::string, std::optional<std::string>>>& outputs,
                   const std::vector<std::string>& inputs);

/// A text as a terminal may have it: a control character, which a name in a file can hold, as \\x1b.
std::string printable(const std::string& text);

/// What a command ends with, on stdout; quiet: the last line alone.
void print_lines(const std::vector<std::string>& lines, bool quiet);

/// A report as a file: the keys that every command's JSON begins with first.
std::string report_text(const nlohmann::json& data);

/// One moving line on stderr, where that is a terminal; gone at its end.
class MovingLine {
 public:
  explicit MovingLine(bool quiet);
  ~MovingLine() { show(""); }
  MovingLine(const MovingLine&) = delete;
  MovingLine& operator=(const MovingLine&) = delete;
  void show(const std::string& text) const;

 private:
  const bool moves_;
};

}  // namespace lockstep::cli
