#include "nn/module.h"

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

std::vector<Parameter*> Module::parameters() {
  std::vector<Parameter*> list;
  for (auto& p : parameters_) list.push_back(&p);
  for (auto* child : children_) {
    for (auto* p : child->parameters()) list.push_back(p);
  }
  return list;
}

}  // namespace lockstep
