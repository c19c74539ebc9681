// JUnit XML, as continuous integration reads it.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct JUnitCase {
  std::string classname, name;
  std::string problem;  // empty: it passed; else text whose first line is the message
};

std::string junit_text(const std::string& suite, const std::vector<JUnitCase>& cases);

}  // namespace lockstep
