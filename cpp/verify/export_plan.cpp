#include "verify/export_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>

#include "core/error.h"
#include "core/json.h"
#include "core/sha256.h"
#include "core/tensor_text.h"

namespace lockstep {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr int64_t kBlock = 1 << 20;  // elements converted at a time, so that memory does not grow with the tensor

bool ends_with(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

/// Weights in any format, code, and what belongs to a version control or to an earlier export.
bool stays_behind(const std::string& name) {
  static const char* suffixes[] = {".safetensors", ".index.json", ".bin",  ".pt",   ".pth",  ".ckpt",
                                   ".h5",          ".msgpack",    ".onnx", ".gguf", ".ggml", ".npz",
                                   ".ot",          ".pkl",        ".py",   ".pyc",  ".so",   ".sh"};
  if (name.empty() || name[0] == '.' || name == kManifest || name == kReport) return true;
  return std::any_of(std::begin(suffixes), std::end(suffixes), [&](const char* s) { return ends_with(name, s); });
}

bool is_utf8(const std::string& text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

void find_files(const Checkpoint& source, ExportPlan& plan) {
  const auto& folder = source.folder();
  const auto used = source.file_names();
  constexpr auto replace = nlohmann::json::error_handler_t::replace;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(folder, ec)) {
    const auto name = entry.path().filename().string();
    if (!is_utf8(name))
      throw LoadError(
          fmt::format("{}: the file name {} is not UTF-8", folder, nlohmann::json(name).dump(-1, ' ', true, replace)));
    if (name == "config.json" || std::find(used.begin(), used.end(), name) != used.end()) continue;
    std::error_code unseen;  // of a link to nothing, which is no regular file either
    if (fs::is_directory(entry.path(), unseen)) {
      plan.files_left_out.push_back(name + "/");
    } else {
      (stays_behind(name) || !fs::is_regular_file(entry.path(), unseen) ? plan.files_left_out : plan.files)
          .push_back(name);
    }
  }
  if (ec) throw LoadError(fmt::format("{}: cannot be read: {}", folder, ec.message()));
  std::sort(plan.files.begin(), plan.files.end());
  std::sort(plan.files_left_out.begin(), plan.files_left_out.end());
}

/// A config says which dtype its weights have, in one or two places and under one of two names.
std::string config_text(const Mirror& source, const ExportOptions& options) {
  const auto path = source.checkpoint().folder() + "/config.json";
  const auto text = read_text(path);
  if (!options.dtype) return text;
  auto config = ordered_json::parse(text);
  bool changed = false;
  const auto state = [&](ordered_json& at) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      const auto it = at.find(key);
      if (it == at.end() || *it == dtype_name(*options.dtype)) continue;
      *it = dtype_name(*options.dtype), changed = true;
    }
  };
  state(config);
  if (const auto it = config.find("text_config"); it != config.end() && it->is_object()) state(*it);
  return changed ? config.dump(2) + "\n" : text;
}

/// Cuts the tensors, in the source's order, into files.
void into_shards(std::vector<PlannedTensor> tensors, ExportPlan& plan) {
  std::vector<std::vector<PlannedTensor>> groups;
  uint64_t size = 0;
  const PlannedTensor* last = nullptr;
  for (auto& t : tensors) {
    const auto bytes = tensor_bytes(t.info.dtype, t.info.shape);
    const bool next = plan.options.max_shard_size ? size > 0 && size + bytes > *plan.options.max_shard_size
                                                  : last && last->source_file != t.source_file;
    if (groups.empty() || next) groups.emplace_back(), size = 0;
    size += bytes, last = &t;
    groups.back().push_back(t);
  }
  if (groups.size() == 1) {
    plan.shards["model.safetensors"] = std::move(groups[0]);
    return;
  }
  uint64_t total = 0;
  nlohmann::json index{{"metadata", {}}, {"weight_map", nlohmann::json::object()}};
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, groups.size());
    for (const auto& t : groups[i]) {
      index["weight_map"][t.info.name] = name;
      total += tensor_bytes(t.info.dtype, t.info.shape);
    }
    plan.shards[name] = std::move(groups[i]);
  }
  index["metadata"]["total_size"] = total;
  plan.index = index.dump(2) + "\n";
}

/// One rounding to nearest even. torch takes float64 to 16 bits through float32: two roundings, unless the first goes
/// to odd (a result that is not exact gets its last bit set, so that the second one sees on which side of a tie it
/// was).
at::Tensor converted(const at::Tensor& x, at::ScalarType to) {
  if (x.scalar_type() != at::kDouble || (to != at::kBFloat16 && to != at::kHalf)) return x.to(to).contiguous();
  const auto near = x.to(at::kFloat);
  const auto back = near.to(at::kDouble);
  auto bits = near.view(at::kInt) - (back.abs() > x.abs()).to(at::kInt);  // towards zero
  bits = at::where(back.ne(x) & x.isnan().logical_not(), bits.bitwise_or(1), bits);
  return bits.view(at::kFloat).to(to).contiguous();
}

/// Elements that the conversion makes infinite.
int64_t overflows(const Checkpoint& source, const PlannedTensor& t) {
  int64_t count = 0;
  const auto flat = source.tensor(t.info.name).reshape({-1});
  for (int64_t i = 0; i < flat.numel(); i += kBlock) {
    const auto x = flat.slice(0, i, std::min(flat.numel(), i + kBlock));
    const auto y = converted(x, torch_dtype(t.info.dtype));
    count += (y.isinf() & x.isinf().logical_not()).sum().item<int64_t>();
  }
  return count;
}

/// none, exact (every number of the source's dtype is one of the other) or nearest_even.
const char* conversion_of(const PlannedTensor& t) {
  if (!t.converted()) return "none";
  const auto to = torch_dtype(t.info.dtype);
  return at::promoteTypes(torch_dtype(t.source_dtype), to) == to ? "exact" : "nearest_even";
}

}  // namespace

uint64_t parse_size(const std::string& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::toupper(c); });
  bool good = error == std::errc() && number > 0;
  if (good && !unit.empty() && unit != "B") {
    static const std::string powers = "KMGT";
    const auto power = powers.find(unit[0]);
    good = power != std::string::npos && (unit.substr(1) == "B" || unit.substr(1) == "IB");
    for (size_t i = 0; good && i <= power; ++i) {
      good = !__builtin_mul_overflow(number, unit.size() == 3 ? uint64_t{1024} : uint64_t{1000}, &number);
    }
  }
  if (!good) {
    throw InputError(fmt::format("--max-shard-size {}: expected a size like 5GB, 500MB or 1GiB", text));
  }
  return number;
}

ExportPlan plan_export(const Mirror& source, const ExportOptions& options) {
  ExportPlan plan;
  plan.options = options;
  const auto& checkpoint = source.checkpoint();
  std::vector<PlannedTensor> tensors;
  for (const auto& name : checkpoint.names()) {
    const bool ignored = !source.family().ignored.rule(name).empty();
    if (ignored && options.text_only) {
      plan.tensors_left_out.push_back(name);
      continue;
    }
    PlannedTensor t{checkpoint.info(name), checkpoint.info(name).dtype, checkpoint.file_name(name)};
    if (options.dtype && !ignored) t.info.dtype = safetensors_dtype(*options.dtype);
    tensors.push_back(std::move(t));
  }
  Problems problems;
  for (const auto& t : tensors) {
    if (!t.converted()) continue;
    if (const auto n = overflows(checkpoint, t)) {
      problems.add(fmt::format("{}: {} of its elements would be infinite in {}; leave it in {}", t.info.name, n,
                               dtype_name(*options.dtype), dtype_name(torch_dtype(t.source_dtype))));
    }
  }
  problems.raise<LoadError>(checkpoint.folder());
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.source_file, a.info.begin) < std::pair(b.source_file, b.info.begin);
  });
  into_shards(std::move(tensors), plan);
  find_files(checkpoint, plan);
  plan.config = config_text(source, options);
  return plan;
}

int64_t exported_bytes(const Checkpoint& source, const PlannedTensor& tensor,
                       const std::function<void(const char*, size_t)>& take) {
  if (!tensor.converted()) {
    const auto bytes = source.bytes(tensor.info.name);
    constexpr size_t kChunk = size_t{4} << 20;
    for (size_t i = 0; i < bytes.size(); i += kChunk) take(bytes.data() + i, std::min(kChunk, bytes.size() - i));
    return 0;
  }
  int64_t changed = 0;
  const auto flat = source.tensor(tensor.info.name).reshape({-1});
  for (int64_t i = 0; i < flat.numel(); i += kBlock) {
    const auto x = flat.slice(0, i, std::min(flat.numel(), i + kBlock));
    const auto y = converted(x, torch_dtype(tensor.info.dtype));
    const auto kept = y.to(at::kDouble).eq(x.to(at::kDouble)) | (x.isnan() & y.isnan());
    changed += x.numel() - kept.sum().item<int64_t>();
    take(static_cast<const char*>(y.const_data_ptr()), y.nbytes());
  }
  return changed;
}

json stated_tensor(const PlannedTensor& t, const std::string& shard, const std::string& sha256,
                   const std::string& source_sha256, const std::string& file_sha256, int64_t changed) {
  return {
      {"dtype", t.info.dtype},
      {"shape", t.info.shape},
      {"file", shard},
      {"sha256", sha256},
      {"conversion", conversion_of(t)},
      {"changed", changed},
      {"source",
       {{"dtype", t.source_dtype}, {"file", t.source_file}, {"file_sha256", file_sha256}, {"sha256", source_sha256}}}};
}

}  // namespace lockstep
