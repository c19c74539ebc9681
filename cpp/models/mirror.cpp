#include "models/mirror.h"

#include <fmt/format.h>

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
  for (auto* p : parameters_) {
    if (!p->value.defined() && !(p->name == kHead && match_.tied)) p->value = file_tensor(p->name).to(dtype);
  }
  if (match_.tied) by_name_.at(kHead)->value = by_name_.at(kEmbedding)->value;
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
