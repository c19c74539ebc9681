#include "verify/provenance.h"

#include <fmt/format.h>

#include "core/tensor_text.h"

namespace lockstep {

using nlohmann::json;

namespace {

constexpr const char* kInvFreq = "model.rotary_emb.inv_freq";
constexpr int64_t kBlock = 1 << 22;  // elements cast at a time, so that memory does not grow with the tensor

/// Flat index of the first element at which cast(file) and value differ, or -1.
int64_t first_difference_after_cast(const at::Tensor& file, const at::Tensor& value) {
  const auto a = file.reshape({-1}), b = value.reshape({-1});
  for (int64_t i = 0; i < a.numel(); i += kBlock) {
    const auto n = std::min(kBlock, a.numel() - i);
    const auto x = a.slice(0, i, i + n).to(value.scalar_type()), y = b.slice(0, i, i + n);
    if (!same_bits(x, y)) return i + first_difference(x, y);
  }
  return -1;
}

std::string described(const at::Tensor& t) { return shape_text(t.sizes()) + " " + dtype_name(t.scalar_type()); }

}  // namespace

Provenance::Provenance(const Mirror& source, Mirror& mirror, at::ScalarType dtype)
    : source_(source), mirror_(mirror), dtype_(dtype) {
  if (mirror_.streams()) return;
  for (auto* p : mirror_.parameters()) mirror_.share(p->name, {});
}

void Provenance::differ(const std::string& tensor, const at::Tensor& reference, const at::Tensor& mirror) {
  json entry{{"tensor", tensor}, {"index", nullptr}};
  const auto at = reference.sizes() == mirror.sizes() ? first_difference_after_cast(mirror, reference) : -1;
  if (at < 0) {  // another shape, or the same numbers in another dtype
    entry["reference"] = described(reference), entry["mirror"] = described(mirror);
  } else {
    entry["index"] = unravel(at, reference.sizes());
    entry["reference"] = reference.reshape({-1})[at].to(at::kDouble).item<double>();
    entry["mirror"] = mirror.reshape({-1})[at].to(reference.scalar_type()).to(at::kDouble).item<double>();
  }
  differing_.push_back(entry);
}

void Provenance::differ(const std::string& what, const json& reference, const json& mirror) {
  differing_.push_back({{"tensor", what}, {"index", nullptr}, {"reference", reference}, {"mirror", mirror}});
}

void Provenance::compare_files() {
  if (&source_ == &mirror_) return;
  for (const auto& [pointer, value] : source_.settings()) {
    const auto other = mirror_.settings().find(pointer);
    if (other != mirror_.settings().end() && other->second != value)
      differ("config.json " + pointer, value, other->second);
  }
  const auto a = source_.model().inv_freq(), b = mirror_.model().inv_freq();
  if (a.sizes() != b.sizes() || !same_bits(a, b)) differ(kInvFreq, a, b);
  for (const auto* p : source_.parameters()) {
    if (!mirror_.has_parameter(p->name)) {
      differ(p->name, json("present"), json("absent"));
      continue;
    }
    const auto a = source_.file_tensor(p->name), b = mirror_.file_tensor(p->name);
    const bool alike = a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
    same_file_[p->name] = alike && same_bits(a, b);
    const bool same_as_embedding = p->name == kHead && source_.match().tied && mirror_.match().tied;
    if (!same_file_[p->name] && !same_as_embedding) differ(p->name, a, b);
  }
  compare_ignored();
  for (const auto* p : mirror_.parameters()) {
    if (source_.has_parameter(p->name)) continue;
    differ(p->name, json("absent"), json("present"));
  }
}

/// Tensors that no model computes with are part of the files all the same.
void Provenance::compare_ignored() {
  const auto &a = source_.checkpoint(), &b = mirror_.checkpoint();
  auto ignored = [](const Mirror& m, const std::string& name) { return !m.family().ignored.rule(name).empty(); };
  for (const auto& name : a.names()) {
    if (!ignored(source_, name)) continue;
    if (!b.has(name)) {
      differ(name, json("present"), json("absent"));
    } else if (a.info(name).dtype != b.info(name).dtype || a.info(name).shape != b.info(name).shape ||
               !same_bits(a.tensor(name), b.tensor(name))) {
      differ(name, a.tensor(name), b.tensor(name));
    }
  }
  for (const auto& name : b.names()) {
    if (ignored(mirror_, name) && !a.has(name)) differ(name, json("absent"), json("present"));
  }
}

void Provenance::reference_parameter(const std::string& name, const at::Tensor& value) {
  ++compared_;
  if (!source_.has_parameter(name)) {
    differ(name, json(described(value)), json("absent"));
    return;
  }
  if (name == kEmbedding) embedding_ = value.const_data_ptr();
  const auto file = source_.file_tensor(name);
  const bool tied = name == kHead && source_.match().tied;
  const bool tied_here = tied && value.const_data_ptr() == embedding_;
  if (!tied_here && !(tied && mirror_.streams()) && file.scalar_type() != dtype_) {
    casts_[dtype_name(file.scalar_type()) + " -> " + dtype_name(dtype_)].push_back(name);
  }
  // A tied head in the reference's own memory has been compared as the embedding.
  const bool equal = tied_here ? seen_[kEmbedding] : is_file(name, value);
  seen_[name] = equal;
  if (!equal && !tied_here) differ(name, value, file);
  if (equal && !mirror_.streams() && may_share(name)) mirror_.share(name, value.detach());
}

void Provenance::lend(const std::string& name, const at::Tensor& value) {
  const auto it = seen_.find(name);
  if (it != seen_.end() && it->second && may_share(name) && is_file(name, value)) mirror_.share(name, value.detach());
}

/// Is it, bit for bit, the source's tensor after the run's cast?
bool Provenance::is_file(const std::string& name, const at::Tensor& value) const {
  const auto file = source_.file_tensor(name);
  return value.scalar_type() == dtype_ && value.sizes() == file.sizes() && first_difference_after_cast(file, value) < 0;
}

/// Is a cast needed that both sides would make of the same bytes?
bool Provenance::may_share(const std::string& name) const {
  const auto same = same_file_.find(name);
  const bool same_file = &source_ == &mirror_ || (same != same_file_.end() && same->second);
  return same_file && source_.file_tensor(name).scalar_type() != dtype_;
}

void Provenance::reference_inv_freq(const at::Tensor& value) {
  const auto formula = source_.model().inv_freq();
  ++compared_;
  if (value.sizes() != formula.sizes() || value.scalar_type() != formula.scalar_type() || !same_bits(value, formula)) {
    differ(kInvFreq, value, formula);
  }
}

void Provenance::bind() {
  for (const auto* p : source_.parameters()) {
    if (!seen_.count(p->name)) differ(p->name, json("absent"), json(described(source_.file_tensor(p->name))));
  }
  mirror_.bind_rest(dtype_);
}

void Provenance::still(const std::string& name, const at::Tensor& value) {
  const auto it = seen_.find(name);
  if (it == seen_.end() || !it->second) return;  // named already
  if (is_file(name, value)) return;
  differ(name, value, source_.file_tensor(name));
  differing_.back()["note"] = "it changed during the run";
}

json Provenance::finish() const {
  source_.checkpoint().check_unchanged();
  mirror_.checkpoint().check_unchanged();
  return {{"verdict", name(differing_.empty() ? Verdict::identical : Verdict::deviates)},
          {"differing", differing_},
          {"compared", compared_},
          {"casts", casts_}};
}

}  // namespace lockstep
