#include "nn/module.h"

#include <stdexcept>

namespace lockstep {

Module::Module(Module* parent, const std::string& name) {
  if (!parent) return;
  path_ = parent->path_.empty() ? name : parent->path_ + "." + name;
  parent->children_.push_back(this);
}

const at::Tensor& Module::parameter(const std::string& name, std::vector<int64_t> shape) {
  parameters_.push_back({path_.empty() ? name : path_ + "." + name, std::move(shape), {}});
  return parameters_.back().value;
}

Module* Module::find(const std::string& path) {
  if (path == path_) return this;
  for (auto* child : children_) {
    if (auto* found = child->find(path)) return found;
  }
  return nullptr;
}

at::Tensor Module::apply(Run&, const at::Tensor&, const Context&) {
  throw std::logic_error(path_ + " has no forward of its own");
}

std::vector<Parameter*> Module::parameters() {
  std::vector<Parameter*> list;
  for (auto& p : parameters_) list.push_back(&p);
  for (auto* child : children_) {
    for (auto* p : child->parameters()) list.push_back(p);
  }
  return list;
}

}  // namespace lockstep
