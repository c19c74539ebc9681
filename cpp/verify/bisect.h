// From recordings to findings: drift over depth, every faulty sublayer of every side, and causes.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "verify/local_check.h"

namespace lockstep {

struct BisectOptions {
  std::string dtype = "float32";
  std::string attn = "sdpa";
  bool values = false;  // inner values of every sublayer, not of suspects alone
  bool causes = true;
  bool thorough = false;          // every hypothesis on every sublayer
  bool points = false;            // report every judged point of every side
  std::set<std::string> without;  // hypotheses left out
  std::set<std::string> only;     // judge the sublayers at or under these paths alone; all of them if empty
  TraceForward len130;            // the forward whose floor counts everywhere
  std::function<void(const std::string&)> progress;
};

/// `candidate` against the truth of the checkpoint in `folder`; `reference`, if there is one, is judged first and is
/// what drift is measured from. -> {drift, faults, notes, power, cost, points, judged, not_compared, extra,
/// skipped_rows}. Raises LoadError for the checkpoint, InputError for forwards that it cannot run.
nlohmann::json bisect(const std::string& folder, std::shared_ptr<const Trace> reference,
                      std::shared_ptr<const Trace> candidate, const BisectOptions& options);

}  // namespace lockstep
