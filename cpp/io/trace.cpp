#include "io/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/json.h"

namespace lockstep {

using nlohmann::json;

namespace {

/// Nested lists of whole numbers -> int64, or undefined for null.
at::Tensor whole_numbers(const json& value, const std::string& where) {
  if (value.is_null()) return {};
  std::vector<int64_t> shape, flat;
  for (const json* level = &value; level->is_array(); level = &level->front()) {
    shape.push_back(static_cast<int64_t>(level->size()));
    if (level->empty() || shape.size() > 3) break;
  }
  bool good = value.is_array() && shape.size() <= 3;
  auto collect = [&](auto&& self, const json& at, size_t depth) -> void {
    if (!good) return;
    if (depth == shape.size()) {
      good = at.is_number_integer() && !(at.is_number_unsigned() && at.get<uint64_t>() >> 62);
      if (good) flat.push_back(at.get<int64_t>());
      return;
    }
    good = at.is_array() && static_cast<int64_t>(at.size()) == shape[depth];
    for (size_t i = 0; good && i < at.size(); ++i) self(self, at[i], depth + 1);
  };
  collect(collect, value, 0);
  if (!good) throw LoadError(where + ": expected a full rectangle of whole numbers");
  return at::tensor(flat, at::kLong).reshape(shape);
}

std::string text(const json& manifest, const char* key, const std::string& where) {
  const auto it = manifest.find(key);
  if (it == manifest.end() || !it->is_string()) throw LoadError(fmt::format("{} /{}: expected a text", where, key));
  return it->get<std::string>();
}

/// 5.10.4 -> 5.10, the variant whose layouts its points have; what is not known has the present ones.
std::string variant_of(const json& manifest) {
  if (const auto it = manifest.find("variant"); it != manifest.end() && it->is_string()) return *it;
  const auto it = manifest.find("transformers");
  return it != manifest.end() && it->is_string() && it->get<std::string>().rfind("5.10.", 0) == 0 ? "5.10" : "5.18";
}

TraceForward read_forward(const json& entry, const std::string& where) {
  if (!entry.is_object()) throw LoadError(where + ": expected an object with name, ids, positions, mask, past");
  for (const auto& [key, _] : entry.items()) {
    static const std::vector<std::string> known = {"name", "ids", "positions", "mask", "past"};
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw LoadError(fmt::format("{}/{}: unknown key (known: name, ids, positions, mask, past)", where, key));
  }
  TraceForward f;
  f.name = text(entry, "name", where);
  if (f.name.empty() || f.name.find('/') != std::string::npos)
    throw LoadError(fmt::format("{}/name: expected a name without '/', found \"{}\"", where, f.name));
  auto get = [&](const char* key) { return whole_numbers(entry.value(key, json()), where + "/" + key); };
  f.ids = get("ids"), f.positions = get("positions"), f.mask = get("mask");
  if (!f.ids.defined() || f.ids.dim() != 2 || f.ids.numel() == 0)
    throw LoadError(where + "/ids: expected [B, T] with at least one token");
  if (const auto past = entry.value("past", json()); past.is_string()) {
    f.past = past;
  } else if (!past.is_null()) {
    throw LoadError(where + "/past: expected the name of an earlier forward or null");
  }
  return f;
}

}  // namespace

bool is_state(const std::string& point) {
  const auto at = point.find('@');
  if (at == std::string::npos) return false;
  const auto value = point.substr(at + 1);
  return value == "conv_state" || value == "recurrent_state" || value == "key_cache" || value == "value_cache";
}

Trace::Trace(std::string dtype, std::string attn, std::string variant, std::vector<TraceForward> forwards)
    : dtype_(std::move(dtype)), attn_(std::move(attn)), variant_(std::move(variant)), forwards_(std::move(forwards)) {
  index_forwards();
}

Trace Trace::open(const std::string& path) {
  Trace t;
  t.file_ = SafetensorsFile::open(path);
  const auto& metadata = t.file_->metadata();
  const auto it = metadata.find("lockstep");
  if (it == metadata.end()) {
    throw LoadError(
        fmt::format("{}: not a trace: expected a metadata key \"lockstep\" with the manifest (a dump is "
                    "turned into a trace by import-trace)",
                    path));
  }
  const auto where = path + " (manifest)";
  t.manifest_ = parse_json(it->second, where);
  if (!t.manifest_.is_object()) throw LoadError(where + ": expected an object");
  const auto version = t.manifest_.find("format_version");
  if (version == t.manifest_.end() || !version->is_number_integer())
    throw LoadError(where + " /format_version: expected a whole number");
  if (version->get<int64_t>() != kTraceVersion) {
    throw LoadError(fmt::format("{} /format_version: {} is not known (known: {}); use the lockstep that wrote it",
                                where, version->dump(), kTraceVersion));
  }
  t.dtype_ = text(t.manifest_, "dtype", where);
  if (t.dtype_ != "float32" && t.dtype_ != "bfloat16" && t.dtype_ != "float16" && t.dtype_ != "float64") {
    throw LoadError(
        fmt::format("{} /dtype: expected float32, bfloat16, float16 or float64, found \"{}\"", where, t.dtype_));
  }
  if (const auto attn = t.manifest_.value("attn", json()); attn.is_string()) t.attn_ = attn;
  t.variant_ = variant_of(t.manifest_);
  const auto forwards = t.manifest_.value("forwards", json());
  if (!forwards.is_array() || forwards.empty())
    throw LoadError(where + " /forwards: expected a list with at least one");
  for (size_t i = 0; i < forwards.size(); ++i)
    t.forwards_.push_back(read_forward(forwards[i], fmt::format("{} /forwards/{}", where, i)));
  std::set<std::string> earlier;
  for (size_t i = 0; i < t.forwards_.size(); ++i) {
    const auto& f = t.forwards_[i];
    const auto at = fmt::format("{} /forwards/{}", where, i);
    if (!f.past.empty() && !earlier.count(f.past))
      throw LoadError(fmt::format("{}/past: expected the name of an earlier forward, found \"{}\"", at, f.past));
    if (!earlier.insert(f.name).second) throw LoadError(fmt::format("{}/name: \"{}\" is there twice", at, f.name));
  }
  t.index_forwards();
  const auto points = t.manifest_.value("points", json());
  if (!points.is_array() || points.empty()) throw LoadError(where + " /points: expected a list of capture points");
  for (const auto& entry : points) {
    if (!entry.is_string()) throw LoadError(where + " /points: expected texts");
    const auto name = entry.get<std::string>();
    const auto slash = name.find('/');
    const auto point = slash == std::string::npos ? name : name.substr(slash + 1);
    if (slash != std::string::npos && !t.has_forward(name.substr(0, slash)))
      throw LoadError(fmt::format("{} /points: \"{}\" names no forward of this trace", where, name));
    t.promise(point);
    if (slash == std::string::npos) {
      t.everywhere_[point] = true;
    } else {
      t.exactly_[name] = true;
    }
  }
  return t;
}

void Trace::index_forwards() {
  for (size_t i = 0; i < forwards_.size(); ++i) index_[forwards_[i].name] = i;
}

void Trace::promise(const std::string& point) {
  if (everywhere_.emplace(point, false).second) points_.push_back(point);
}

void Trace::add(const std::string& forward, const std::string& point, const at::Tensor& value) {
  const auto name = forward + "/" + point;
  promise(point);
  if (tensors_.count(name)) {
    repeated_.push_back(name);
    return;
  }
  exactly_[name] = true;
  tensors_[name] = value;
}

const TraceForward& Trace::forward(const std::string& name) const { return forwards_[index_.at(name)]; }

int64_t Trace::past(const std::string& name) const {
  int64_t tokens = 0;
  for (const auto* f = &forward(name); !f->past.empty();) {
    f = &forward(f->past);
    tokens += f->ids.size(1);
  }
  return tokens;
}

bool Trace::cached(const std::string& name) const {
  return !forward(name).past.empty() ||
         std::any_of(forwards_.begin(), forwards_.end(), [&](const auto& f) { return f.past == name; });
}

bool Trace::promised(const std::string& forward, const std::string& point) const {
  if (std::find(repeated_.begin(), repeated_.end(), forward + "/" + point) != repeated_.end()) return false;
  if (exactly_.count(forward + "/" + point)) return true;
  const auto it = everywhere_.find(point);
  if (it == everywhere_.end() || !it->second) return false;
  return !is_state(point) || cached(forward);
}

at::Tensor Trace::tensor(const std::string& forward, const std::string& point) const {
  const auto name = forward + "/" + point;
  if (const auto it = tensors_.find(name); it != tensors_.end()) return it->second;
  if (file_ && file_->tensors().count(name)) return file_->tensor(name);
  return {};
}

std::vector<std::string> Trace::unpromised() const {
  std::vector<std::string> list;
  if (!file_) return list;
  for (const auto& [name, _] : file_->tensors()) {
    const auto slash = name.find('/');
    if (slash == std::string::npos || !has_forward(name.substr(0, slash)) ||
        !promised(name.substr(0, slash), name.substr(slash + 1)))
      list.push_back(name);
  }
  return list;
}

void Trace::check_unchanged() const {
  if (file_) file_->check_unchanged();
}

}  // namespace lockstep
