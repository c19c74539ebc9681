#include "models/mirror.h"

#include <fmt/format.h>
#include <malloc.h>

#include "core/error.h"

namespace lockstep {

namespace {

std::vector<WantedTensor> wanted_of(const std::vector<Parameter*>& parameters) {
  std::vector<WantedTensor> wanted;
  for (const auto* p : parameters) wanted.push_back({p->name, p->shape});
  return wanted;
}

BuiltModel build(const Checkpoint& checkpoint) {
  return build_model(checkpoint.config(), checkpoint.folder() + "/config.json");
}

/// The step of CausalLM::step() that computes with a parameter.
int64_t step_of(const std::string& parameter, int64_t layers) {
  static const std::string kLayers = "model.layers.";
  if (parameter == kEmbedding) return -1;
  if (parameter.compare(0, kLayers.size(), kLayers) != 0) return layers;
  return std::stoll(parameter.substr(kLayers.size()));
}

}  // namespace

std::unique_ptr<Mirror> Mirror::open(const std::string& folder) {
  std::unique_ptr<Mirror> m(new Mirror(Checkpoint::open(folder)));
  auto built = build(m->checkpoint_);
  m->family_ = built.family;
  m->model_ = std::move(built.model);
  m->settings_ = std::move(built.settings);
  m->parameters_ = m->model_->parameters();
  for (auto* p : m->parameters_) m->by_name_[p->name] = p;
  m->match_ = m->checkpoint_.match(wanted_of(m->parameters_), m->family_->ignored, built.tie);
  return m;
}

at::Tensor Mirror::file_tensor(const std::string& parameter) const {
  const auto& name = parameter == kHead && match_.tied ? kEmbedding : parameter;
  return checkpoint_.tensor(match_.source.at(name));
}

void Mirror::bind(at::ScalarType dtype) {
  for (auto* p : parameters_) p->value = at::Tensor();
  bind_rest(dtype);
}

void Mirror::share(const std::string& parameter, const at::Tensor& value) { by_name_.at(parameter)->value = value; }

void Mirror::bind_rest(at::ScalarType dtype) {
  if (streams()) return;
  for (auto* p : parameters_) {
    if (!p->value.defined() && !(p->name == kHead && match_.tied)) p->value = file_tensor(p->name).to(dtype);
  }
  if (match_.tied) by_name_.at(kHead)->value = by_name_.at(kEmbedding)->value;
}

void Mirror::stream(at::ScalarType dtype) {
#ifdef M_MMAP_THRESHOLD
  // What is freed goes back to the system at once. Left to itself glibc keeps what is up to 32 MB for later, and a
  // layer's tensors are.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
  for (auto* p : parameters_) p->value = at::Tensor();
  model_->before_step = [this, dtype](int64_t step) { hold(step, dtype); };
}

void Mirror::stop_streaming() {
  model_->before_step = {};
  for (auto* p : parameters_) p->value = at::Tensor();
}

void Mirror::hold(int64_t step, at::ScalarType dtype) {
  for (auto* p : parameters_) {
    if (step_of(p->name, model_->layers()) != step) p->value = at::Tensor();
  }
  for (auto* p : parameters_) {
    if (step_of(p->name, model_->layers()) == step && !p->value.defined()) p->value = file_tensor(p->name).to(dtype);
  }
}

int64_t Mirror::parameter_count() const {
  int64_t count = 0;
  for (const auto* p : parameters_) {
    if (p->name == kHead && match_.tied) continue;
    int64_t elements = 1;
    for (auto d : p->shape) elements *= d;
    count += elements;
  }
  return count;
}

std::vector<NameRow> list_names(const std::string& folder) {
  const auto checkpoint = Checkpoint::open(folder);
  const auto built = build(checkpoint);
  return checkpoint.rows(wanted_of(built.model->parameters()), built.family->ignored, built.tie);
}

}  // namespace lockstep
