#include "core/junit.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep {

namespace {

/// XML 1.0 cannot hold most control characters at all.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return out;
}

}  // namespace

std::string junit_text(const std::string& suite, const std::vector<JUnitCase>& cases) {
  const auto failures = std::count_if(cases.begin(), cases.end(), [](const auto& c) { return !c.problem.empty(); });
  auto text =
      fmt::format("<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\">\n",
                  escaped(suite), cases.size(), failures);
  for (const auto& c : cases) {
    text += fmt::format("  <testcase classname=\"{}\" name=\"{}\"", escaped(c.classname), escaped(c.name));
    if (c.problem.empty()) {
      text += " />\n";
      continue;
    }
    text += fmt::format(">\n    <failure message=\"{}\">{}</failure>\n  </testcase>\n",
                        escaped(c.problem.substr(0, c.problem.find('\n'))), escaped(c.problem));
  }
  return text + "</testsuite>\n";
}

}  // namespace lockstep
