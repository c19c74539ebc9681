// The mirror: a family's model with the weights of a checkpoint folder, usable by itself.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>

#include "io/checkpoint.h"
#include "models/registry.h"

namespace lockstep {

class Mirror {
 public:
  /// Opens the folder, reads its config and matches every tensor strictly; no weight is read yet. Raises LoadError.
  static std::unique_ptr<Mirror> open(const std::string& folder);

  /// Gives every parameter its tensor in `dtype`, as transformers applies a run's dtype: a view of the mapped file
  /// where the dtypes agree, else a cast copy.
  void bind(at::ScalarType dtype);
  /// Gives one parameter a tensor that has been proved equal to the file's after the cast (no second copy).
  void share(const std::string& parameter, const at::Tensor& value);
  /// Binds what is not yet bound; nothing while the weights are streamed.
  void bind_rest(at::ScalarType dtype);
  /// From now on each step of a forward gets its weights in `dtype` as it begins, and they go when another step begins:
  /// memory does not grow with depth. What was shared for a step before it begins is used.
  void stream(at::ScalarType dtype);
  void stop_streaming();
  bool streams() const { return bool(model_->before_step); }

  /// The file's tensor of a parameter, in the file's dtype. A tied head is the embedding.
  at::Tensor file_tensor(const std::string& parameter) const;
  /// Of a parameter for which has_parameter() is true.
  bool has_parameter(const std::string& name) const { return by_name_.count(name) > 0; }
  const at::Tensor& value(const std::string& parameter) const { return by_name_.at(parameter)->value; }

  const Checkpoint& checkpoint() const { return checkpoint_; }
  const Match& match() const { return match_; }
  /// What the config says of the mathematics, by JSON pointer.
  const ConfigReader::Settings& settings() const { return settings_; }
  const Family& family() const { return *family_; }
  CausalLM& model() const { return *model_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  /// Elements over all parameters, a tied head counted once.
  int64_t parameter_count() const;

 private:
  explicit Mirror(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  void hold(int64_t step, at::ScalarType dtype);

  Checkpoint checkpoint_;
  const Family* family_ = nullptr;
  ConfigReader::Settings settings_;
  std::unique_ptr<CausalLM> model_;
  Match match_;
  std::vector<Parameter*> parameters_;
  std::map<std::string, Parameter*> by_name_;
};

/// The listing of a folder's tensors beside the mirror's parameters; does not raise for what it lists.
std::vector<NameRow> list_names(const std::string& folder);

}  // namespace lockstep
