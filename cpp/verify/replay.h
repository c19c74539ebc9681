// Replays a golden trace: is the mirror on this machine still what Hugging Face was when the trace was recorded?
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/metrics.h"
#include "verify/golden.h"

namespace lockstep {

struct ReplayOptions {
  std::optional<Gate> gate;  // stated: what agrees within it passes; else only the same bits do, on the same machine
  bool bitwise = false, accept_rounding = false;
  bool stream = false;  // one layer's weights in memory at a time
  /// Digests that the model's tensors had before they were converted, by name; else those of its files are computed.
  std::optional<std::map<std::string, std::string>> digests;
  bool converted = false;  // some of those tensors were: the recording's run had casts where the model's has its file
  std::set<std::string> left_out;  // tensors that an export does not carry: their digests are not expected
  std::function<void(const std::string&)> say;
};

/// The data of `lockstep-native verify --json`. The digests are compared first, then every promised point of every
/// forward, run with the trace's thread count. Where torch or the CPU's capability is another than the trace's, bits
/// may differ by right: both sides are then judged by the local check against the truth of the checkpoint, and
/// `rounding` passes. Raises LoadError for the checkpoint, InputError for forwards that it cannot run.
nlohmann::json replay(const std::string& folder, const std::shared_ptr<const Trace>& golden,
                      const ReplayOptions& options);

/// The report that a person reads.
std::vector<std::string> replay_lines(const nlohmann::json& data);
/// JUnit XML: one case for provenance, one per input and layer.
std::string replay_junit(const nlohmann::json& data);

}  // namespace lockstep
