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
