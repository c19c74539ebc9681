#include "text/pattern.h"

namespace lockstep {

Pattern::Pattern(ConfigReader& owner, const std::string& key) {
  auto pattern = owner.child(key);
  if (pattern.has("Regex")) {
    regex_.emplace(pattern.require<std::string>("Regex"), pattern.at("Regex"));
  } else {
    string_ = pattern.require<std::string>("String");
    if (string_.empty()) pattern.fail("String", "expected some text, found an empty one");
  }
  pattern.finish();
}

}  // namespace lockstep
