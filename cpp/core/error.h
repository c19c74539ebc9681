// Every refusal of Lockstep, and its one message format: the thing, what was expected, what was found, what to do.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A checkpoint, config or file that cannot be loaded as it stands.
class LoadError : public Error {
 public:
  using Error::Error;
};

/// A forward, option or tensor that cannot be run.
class InputError : public Error {
 public:
  using Error::Error;
};

/// Collects problems, so that one error names them all.
class Problems {
 public:
  void add(std::string problem) { list_.push_back(std::move(problem)); }
  bool empty() const { return list_.empty(); }

  /// Throws E with one problem on its own line each, if there is any. A single problem is the whole message.
  template <class E>
  void raise(std::string_view headline) const {
    if (list_.empty()) return;
    if (list_.size() == 1) throw E(list_.front());
    std::string text(headline);
    text += ": " + std::to_string(list_.size()) + " problems";
    for (size_t i = 0; i < list_.size() && i < kShown; ++i) text += "\n  " + list_[i];
    if (list_.size() > kShown) text += "\n  ... and " + std::to_string(list_.size() - kShown) + " more";
    throw E(text);
  }

 private:
  static constexpr size_t kShown = 40;
  std::vector<std::string> list_;
};

}  // namespace lockstep
