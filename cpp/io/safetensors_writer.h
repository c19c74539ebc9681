// A deterministic, streaming safetensors writer: the same tensors give the same bytes, those of the official writer.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "io/files.h"
#include "io/safetensors.h"

namespace lockstep {

class SafetensorsWriter {
 public:
  /// Makes `path`, which must not exist, and writes the header: `tensors` by name, dtype and shape (their offsets are
  /// set here), in the official order: larger dtypes first, then names, so that every tensor is aligned. Raises
  /// LoadError.
  SafetensorsWriter(const std::string& path, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata);

  /// In the order in which write() expects their bytes.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  void write(const void* data, size_t size) { file_.write(data, size); }
  /// Every byte is there and on the disk. Raises LoadError if they are not as many as the header says.
  void finish();

 private:
  NewFile file_;
  std::vector<TensorInfo> tensors_;
  uint64_t expected_ = 0;
};

/// Puts tensors in the official order and sets their offsets: larger dtypes first, then names.
void lay_out(std::vector<TensorInfo>& tensors);
/// The header of laid-out tensors as the official writer spells it, padded with spaces to 8 bytes.
std::string header_text(const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata);

}  // namespace lockstep
