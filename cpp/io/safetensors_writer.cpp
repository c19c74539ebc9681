#include "io/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace lockstep {

namespace {

// Mirrors the order of the enumeration Dtype of safetensors 0.8, by which its writer sorts: smallest first.
constexpr const char* kOrder[] = {"BOOL",    "F4",      "F6_E2M3", "F6_E3M2", "U8",  "I8",   "F8_E5M2",
                                  "F8_E4M3", "F8_E8M0", "I16",     "U16",     "F16", "BF16", "I32",
                                  "U32",     "F32",     "C64",     "F64",     "I64", "U64"};

auto rank(const std::string& dtype) { return std::find(std::begin(kOrder), std::end(kOrder), dtype); }

}  // namespace

// Keys in this order, no spaces but the padding.
std::string header_text(const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  for (const auto& t : tensors) {
    auto& entry = header[t.name];
    entry["dtype"] = t.dtype;
    entry["shape"] = t.shape;
    entry["data_offsets"] = {t.begin, t.end};
  }
  auto text = header.is_null() ? std::string("{}") : header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

void lay_out(std::vector<TensorInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    const auto x = rank(a.dtype), y = rank(b.dtype);
    return x != y ? x > y : a.name < b.name;
  });
  uint64_t end = 0;
  for (auto& t : tensors) {
    t.begin = end;
    end = t.end = t.begin + tensor_bytes(t.dtype, t.shape);
  }
}

bool SafetensorsFile::canonical() const {
  std::vector<TensorInfo> list;
  for (const auto& [_, info] : tensors_) list.push_back(info);
  lay_out(list);
  const auto header = header_text(list, metadata_);
  const auto size = static_cast<size_t>(payload_ - file_->data()) - 8;
  return std::string_view(file_->data() + 8, size) == header;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path), tensors_(std::move(tensors)) {
  lay_out(tensors_);
  const auto header = header_text(tensors_, metadata);
  char length[8];
  const uint64_t size = header.size();
  std::memcpy(length, &size, 8);
  file_.write(length, 8);
  file_.write(header);
  expected_ = file_.written() + (tensors_.empty() ? 0 : tensors_.back().end);
}

void SafetensorsWriter::finish() {
  if (file_.written() != expected_) {
    throw LoadError(fmt::format("the writer of a safetensors file was given {} bytes, its header says {}",
                                file_.written(), expected_));
  }
  file_.finish();
}

}  // namespace lockstep
