// Writes a checkpoint whose every byte is accounted for. It appears under its name only when everything about it holds.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "io/files.h"
#include "models/mirror.h"
#include "verify/export_plan.h"

namespace lockstep {

/// Told what is being done; it may throw, to stop.
using Say = std::function<void(const std::string&)>;

class Export {
 public:
  /// Makes a folder of work beside `out`. Refuses, with LoadError, an `out` that is a link, is not empty, is the
  /// source, lies inside of it, or cannot be made; and a dtype that makes a tensor infinite.
  Export(const Mirror& source, const std::string& out, const ExportOptions& options);

  /// Where it is written until finish(): a checkpoint folder.
  const std::string& folder() const { return staged_.path(); }
  const ExportPlan& plan() const { return plan_; }
  /// What the manifest states of each tensor, once write() is done.
  const nlohmann::json& tensors() const { return tensors_; }
  /// How many folders of interrupted exports to the same place were removed.
  int removed() const { return staged_.removed(); }

  /// Writes weights, config, and the files beside them.
  void write(const Say& say);
  /// Opens what was written and holds every byte of every tensor against the source. Raises LoadError.
  void reread(const Say& say);
  /// Writes the report and the manifest, and makes `out` appear -> the manifest. `producer` and `verification` go into
  /// it as they are.
  nlohmann::json finish(const std::string& report, const nlohmann::json& producer, const nlohmann::json& verification);
  /// Removes what was written; also what its end does.
  void discard() { staged_.remove(); }

 private:
  void add_file(const std::string& name, const std::string& from, const FileDigest& digest);
  void write_text(const std::string& name, const std::string& from, const std::string& text);
  const Mirror& source_;
  StagedFolder staged_;
  ExportPlan plan_;
  nlohmann::json files_ = nlohmann::json::object(), tensors_ = nlohmann::json::object(),
                 source_files_ = nlohmann::json::object();
};

}  // namespace lockstep
