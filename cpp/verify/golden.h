// A golden trace: recorded from Hugging Face, with a digest of everything, so that it can be replayed where no Python
// is.
#pragma once

#include <memory>
#include <string>

#include "io/trace.h"
#include "nn/recorder.h"

namespace lockstep {

/// The trace in `path`, if it is golden: recorded from Hugging Face with inputs and outputs of sublayers and a digest
/// per tensor. Raises LoadError.
std::shared_ptr<const Trace> open_golden(const std::string& path);

/// As many threads as the recording had, for as long as it lives: sums are split by threads. Raises LoadError.
class RecordedThreads {
 public:
  explicit RecordedThreads(const Trace& golden);
  ~RecordedThreads();
  RecordedThreads(const RecordedThreads&) = delete;
  RecordedThreads& operator=(const RecordedThreads&) = delete;

 private:
  const int before_;
};

/// The lowest level that holds every promised point.
Level level_of_points(const Trace& trace);

/// A text of the manifest; empty where there is none.
std::string text_of(const nlohmann::json& manifest, const char* key);

}  // namespace lockstep
