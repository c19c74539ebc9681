// Third leg: which mechanisms the inputs really exercised. What the config rules out is absent, never "passed".
#pragma once

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/causal_lm.h"

namespace lockstep {

class Coverage {
 public:
  explicit Coverage(const Mechanisms& mechanisms) : m_(mechanisms) {}

  /// Counts one forward: its inputs, the tokens already in its cache, and whether it ran with one.
  void add(const Inputs& inputs, int64_t past, bool cached);

  /// {exercised, not_exercised, absent: sorted lists; rows: {distinct_ids, vocab}}
  nlohmann::json finish() const;

 private:
  void mark(const char* mechanism, bool exercised) {
    if (exercised) exercised_.insert(mechanism);
  }
  bool present(const std::string& mechanism) const;
  const Mechanisms m_;
  std::set<std::string> exercised_;
  std::set<int64_t> ids_;
};

}  // namespace lockstep
