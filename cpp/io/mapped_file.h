// A private mapping of a whole file. Views into it share ownership; who writes to one writes to memory of its own,
// never to the file.
//
// A file that is cut short while it is mapped would end the process with SIGBUS at the next read. A handler gives such
// a read zeros and remembers it, so that check_unchanged() refuses the result instead.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace lockstep {

class MappedFile {
 public:
  /// Raises LoadError if the path is no regular file or cannot be mapped.
  static std::shared_ptr<MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const char* data() const { return data_; }
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }
  /// Raises LoadError if the file on disk is no longer what was mapped (size or modification time), or if a read has
  /// already met its missing end. Call it after what was read has been used.
  void check_unchanged() const;

 private:
  MappedFile() = default;
  std::string path_;
  const char* data_ = nullptr;
  size_t size_ = 0;
  int64_t modified_ns_ = 0;
  int guard_ = -1;  // its place in the handler's table
};

}  // namespace lockstep
