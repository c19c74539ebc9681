#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/json.h"
#include "core/tensor_text.h"

namespace lockstep {

namespace {

constexpr uint64_t kHeaderLimit = 100'000'000;  // the official reader's

struct DtypeRow {
  const char* name;
  int bits;
  at::ScalarType torch;
};
constexpr DtypeRow kDtypes[] = {
    {"F64", 64, at::kDouble},
    {"F32", 32, at::kFloat},
    {"F16", 16, at::kHalf},
    {"BF16", 16, at::kBFloat16},
    {"I64", 64, at::kLong},
    {"I32", 32, at::kInt},
    {"I16", 16, at::kShort},
    {"I8", 8, at::kChar},
    {"U8", 8, at::kByte},
    {"BOOL", 8, at::kBool},
    {"F8_E4M3", 8, at::kFloat8_e4m3fn},
    {"F8_E5M2", 8, at::kFloat8_e5m2},
    {"U64", 64, at::kUInt64},
    {"U32", 32, at::kUInt32},
    {"U16", 16, at::kUInt16},
    {"C64", 64, at::kComplexFloat},
    {"F8_E8M0", 8, at::ScalarType::Undefined},
    {"F6_E2M3", 6, at::ScalarType::Undefined},
    {"F6_E3M2", 6, at::ScalarType::Undefined},
    {"F4", 4, at::ScalarType::Undefined},
};

const DtypeRow* find_dtype(const std::string& name) {
  for (const auto& row : kDtypes) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

/// One header entry, checked in itself: keys, dtype, shape, offsets, size as the shape says.
TensorInfo read_entry(const std::string& path, const std::string& name, const nlohmann::json& entry) {
  auto fail = [&](const std::string& what) -> void {
    throw LoadError(fmt::format("{}: tensor {}: {}", path, name, what));
  };
  if (!entry.is_object()) fail("expected an object with dtype, shape and data_offsets");
  for (const auto& [key, value] : entry.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") fail(fmt::format("unknown header key \"{}\"", key));
  }
  TensorInfo info;
  info.name = name;
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) fail("expected a dtype string");
  info.dtype = dtype->get<std::string>();
  const auto* row = find_dtype(info.dtype);
  if (!row) fail(fmt::format("unknown dtype \"{}\"", info.dtype));

  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array()) fail("expected a shape list");
  uint64_t bits = static_cast<uint64_t>(row->bits);
  for (const auto& d : *shape) {
    if (!d.is_number_unsigned() || d.get<uint64_t>() > uint64_t(INT64_MAX)) {
      fail(fmt::format("expected sizes from 0 to 2^63-1 in shape, found {}", d.dump()));
    }
    info.shape.push_back(d.get<int64_t>());
    if (__builtin_mul_overflow(bits, d.get<uint64_t>(), &bits)) fail("the shape's size overflows 64 bits");
  }
  if (bits % 8) fail("the shape's size is not a whole number of bytes");

  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned()) {
    fail("expected data_offsets [begin, end]");
  }
  info.begin = (*offsets)[0].get<uint64_t>(), info.end = (*offsets)[1].get<uint64_t>();
  if (info.begin > info.end) fail(fmt::format("data_offsets [{}, {}] run backwards", info.begin, info.end));
  if (info.end - info.begin != bits / 8) {
    fail(fmt::format("expected {} bytes for {} {}, found data_offsets of {} bytes", bits / 8, shape_text(info.shape),
                     info.dtype, info.end - info.begin));
  }
  return info;
}

/// The ranges must tile the payload: no overlap, no hole, nothing after the last.
void check_tiling(const std::string& path, const std::map<std::string, TensorInfo>& tensors, uint64_t payload) {
  std::vector<const TensorInfo*> order;
  for (const auto& [name, info] : tensors) order.push_back(&info);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
  Problems problems;
  uint64_t end = 0;
  const TensorInfo* last = nullptr;
  for (const auto* info : order) {
    if (info->begin < end) {
      problems.add(fmt::format("{}: tensors {} and {} overlap: bytes [{}, {}) and [{}, {})", path, last->name,
                               info->name, last->begin, last->end, info->begin, info->end));
    } else if (info->begin > end) {
      problems.add(
          fmt::format("{}: bytes [{}, {}) before tensor {} belong to no tensor", path, end, info->begin, info->name));
    }
    if (info->end >= end) end = info->end, last = info;
  }
  if (end < payload) problems.add(fmt::format("{}: the last {} bytes belong to no tensor", path, payload - end));
  problems.raise<LoadError>(path);
}

}  // namespace

at::ScalarType torch_dtype(const std::string& safetensors_dtype) {
  const auto* row = find_dtype(safetensors_dtype);
  return row ? row->torch : at::ScalarType::Undefined;
}

std::string safetensors_dtype(at::ScalarType dtype) {
  for (const auto& row : kDtypes) {
    if (row.torch == dtype && dtype != at::ScalarType::Undefined) return row.name;
  }
  return "";
}

uint64_t tensor_bytes(const std::string& safetensors_dtype, const std::vector<int64_t>& shape) {
  const auto* row = find_dtype(safetensors_dtype);
  if (!row) throw LoadError(fmt::format("unknown dtype \"{}\"", safetensors_dtype));
  uint64_t bits = static_cast<uint64_t>(row->bits);
  for (const auto d : shape) bits *= static_cast<uint64_t>(d);
  return bits / 8;
}

std::string SafetensorsFile::file_name() const { return std::filesystem::path(path()).filename().string(); }

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile f;
  f.file_ = MappedFile::open(path);
  const size_t size = f.file_->size();
  const std::string_view all(f.file_->data(), size);
  if (all.rfind("version https://git-lfs", 0) == 0) {
    throw LoadError(fmt::format(
        "{}: looks like a Git LFS pointer of {} bytes, expected a safetensors file; run git lfs pull", path, size));
  }
  if (size < 8)
    throw LoadError(fmt::format("{}: {} bytes, too short for a safetensors file (expected at least 8)", path, size));
  uint64_t length;
  std::memcpy(&length, all.data(), 8);
  if (length > kHeaderLimit) {
    throw LoadError(
        fmt::format("{}: header too large: {} bytes (limit {}); not a safetensors file?", path, length, kHeaderLimit));
  }
  if (length > size - 8) {
    throw LoadError(
        fmt::format("{}: header of {} bytes, but only {} bytes follow (truncated?)", path, length, size - 8));
  }
  const std::string_view text = all.substr(8, length);
  if (text.empty() || text.front() != '{')
    throw LoadError(fmt::format("{}: the header does not begin with '{{'", path));
  const auto header = parse_json(text, path + " header");
  if (!header.is_object()) throw LoadError(fmt::format("{}: expected the header to be an object", path));

  f.payload_ = f.file_->data() + 8 + length;
  const uint64_t payload = size - 8 - length;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object())
        throw LoadError(fmt::format("{}: expected __metadata__ to be an object of strings", path));
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) throw LoadError(fmt::format("{}: __metadata__ key \"{}\" is not a string", path, key));
        f.metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    f.tensors_.emplace(name, read_entry(path, name, entry));
  }
  uint64_t needed = 0;
  for (const auto& [name, info] : f.tensors_) needed = std::max(needed, info.end);
  if (needed > payload) {
    throw LoadError(fmt::format("{}: needs {} bytes, has {} (truncated?); get the file again", path,
                                needed + (size - payload), size));
  }
  check_tiling(path, f.tensors_, payload);
  return f;
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const auto& info = tensors_.at(name);
  const auto dtype = torch_dtype(info.dtype);
  if (dtype == at::ScalarType::Undefined) {
    throw LoadError(fmt::format("{}: tensor {}: dtype {} has no torch type", path(), name, info.dtype));
  }
  const auto options = at::TensorOptions().dtype(dtype);
  const char* at = bytes(info);
  const size_t item = c10::elementSize(dtype);
  if (info.begin == info.end) return at::empty(info.shape, options);
  if (reinterpret_cast<uintptr_t>(at) % item != 0) {  // an odd header: vector loads assume natural alignment
    auto copy = at::empty(info.shape, options);
    std::memcpy(copy.mutable_data_ptr(), at, info.end - info.begin);
    return copy;
  }
  return at::from_blob(
      const_cast<char*>(at), info.shape, [file = file_](void*) {}, options);
}

}  // namespace lockstep
