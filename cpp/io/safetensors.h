// A strict, memory-mapped safetensors reader (format: github.com/huggingface/safetensors, README "Format").
// Header and offsets are checked against the file's size before anything is trusted or allocated.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/mapped_file.h"

namespace lockstep {

struct TensorInfo {
  std::string name;
  std::string dtype;  // as the file spells it: F32, BF16, ...
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes in the payload
};

class SafetensorsFile {
 public:
  /// Raises LoadError naming the file and what is wrong: too short, a Git LFS pointer, header length, JSON, duplicate
  /// tensor names, dtype, shape, offsets, overlaps, holes, a payload that is too short or too long.
  static SafetensorsFile open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  std::string file_name() const;
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// The tensor in the file's dtype: a view of the mapping where its bytes are aligned, else a copy. It keeps the
  /// mapping alive. Raises LoadError for a dtype that torch has no type for.
  at::Tensor tensor(const std::string& name) const;
  const char* bytes(const TensorInfo& info) const { return payload_ + info.begin; }
  /// Is the header, to the byte, what the official writer makes of these tensors and metadata?
  bool canonical() const;
  void check_unchanged() const { file_->check_unchanged(); }

 private:
  std::shared_ptr<MappedFile> file_;
  const char* payload_ = nullptr;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// torch's type for a safetensors dtype, or Undefined.
at::ScalarType torch_dtype(const std::string& safetensors_dtype);
/// safetensors' name of a torch dtype, or empty.
std::string safetensors_dtype(at::ScalarType dtype);
/// Bytes of a tensor of this dtype and a shape that has been checked. Raises LoadError for an unknown dtype.
uint64_t tensor_bytes(const std::string& safetensors_dtype, const std::vector<int64_t>& shape);

}  // namespace lockstep
