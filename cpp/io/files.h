// Files and folders that appear whole or not at all, and stay: written under another name, synced, renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

/// A new file that is written from front to back. Every failure is a LoadError that names it: no room left, a limit on
/// its size, a name that is taken.
class NewFile {
 public:
  explicit NewFile(const std::string& path);  // must not exist
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  uint64_t written() const { return written_; }
  /// On the disk, and closed. Without it the file is taken to be unfinished.
  void finish();

 private:
  std::string path_;
  int file_ = -1;
  uint64_t written_ = 0;
};

/// A small file, whole or not at all: under another name beside it, then renamed. Raises LoadError.
void write_text_whole(const std::string& path, std::string_view text);

/// Makes a folder's entries last. Raises LoadError.
void sync_folder(const std::string& folder);

/// Size and SHA-256 (hex) of a regular file's bytes. Raises LoadError.
struct FileDigest {
  uint64_t bytes = 0;
  std::string sha256;
};
FileDigest digest_file(const std::string& path);

/// A folder of work beside the place that it will be renamed to. While its owner lives it is locked; what a killed one
/// left is removed by the next for the same place.
class StagedFolder {
 public:
  /// Makes `.<name>.unfinished-...` beside `target`, whose parent must exist. Raises LoadError, also when another
  /// process is at work on the same target.
  explicit StagedFolder(const std::string& target);
  ~StagedFolder() { remove(); }
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;
  const std::string& path() const { return path_; }
  /// Removes it, unless it has become the target.
  void remove();
  /// What earlier owners left and is gone now.
  int removed() const { return removed_; }
  /// Syncs it and renames it to the target, which must be absent or an empty folder.
  void become_target();

 private:
  std::string target_, path_;
  int lock_ = -1, removed_ = 0;
};

}  // namespace lockstep
