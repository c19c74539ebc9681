// The base of every module. A member's name, the registered name, the HF attribute and the checkpoint's name are one
// word; a child registers itself with its parent, so a path is never spelled twice.
#pragma once

#include <ATen/ATen.h>

#include <deque>
#include <string>
#include <vector>

namespace lockstep {

class Run;
struct Context;

struct Parameter {
  std::string name;            // full: model.layers.3.mlp.up_proj.weight
  std::vector<int64_t> shape;  // what the config says; the tensor is empty until it is bound
  at::Tensor value;            // in the run's dtype
};

class Module {
 public:
  explicit Module(Module* parent = nullptr, const std::string& name = "");
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// "model.layers.3.mlp"; empty for the root.
  const std::string& path() const { return path_; }
  /// Every parameter of this module and those below, in the order in which they were declared.
  std::vector<Parameter*> parameters();
  /// The module at `path` among this one and those below, or null.
  Module* find(const std::string& path);
  /// The forward with what a layer is given: hidden states and the context. Raises std::logic_error for a module that
  /// has no such forward (a list, a name).
  virtual at::Tensor apply(Run& run, const at::Tensor& x, const Context& context);

 protected:
  /// Declares a parameter; the reference stays valid.
  const at::Tensor& parameter(const std::string& name, std::vector<int64_t> shape);

 private:
  std::string path_;
  std::vector<Module*> children_;
  std::deque<Parameter> parameters_;
};

}  // namespace lockstep
