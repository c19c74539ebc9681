// First leg: every parameter on both sides is, bit for bit, the file's tensor after the run's cast.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/metrics.h"
#include "models/mirror.h"

namespace lockstep {

class Provenance {
 public:
  /// `source` is the checkpoint that the reference was loaded from; `mirror` the one that the mirror is bound from,
  /// the same object or another folder's. The mirror's parameters are bound here, in `dtype`.
  Provenance(const Mirror& source, Mirror& mirror, at::ScalarType dtype);

  /// Holds two folders against each other: their tensors in the files' dtypes, the configs' values that both state, and
  /// inv_freq. Only where they are two.
  void compare_files();
  /// Holds one parameter of the reference against the source's tensor after the cast. Where it is proved equal and a
  /// cast was needed, the mirror shares the reference's tensor: no second copy.
  void reference_parameter(const std::string& name, const at::Tensor& value);
  /// Of a mirror whose weights are streamed: gives it the reference's tensor for the step to come, if it was proved
  /// equal and still is, so that the largest one is not cast a second time.
  void lend(const std::string& name, const at::Tensor& value);
  /// Holds a buffer that is in no file against its formula.
  void reference_inv_freq(const at::Tensor& value);
  /// Names the parameters the reference lacks and binds the rest of the mirror.
  void bind();
  /// After the other legs: is a parameter of the reference still what it was proved to be?
  void still(const std::string& name, const at::Tensor& value);
  /// {verdict, differing: [{tensor, index, reference, mirror}], compared, casts: {"bfloat16 -> float32": [names]}}.
  /// Raises LoadError if a file changed since it was opened.
  nlohmann::json finish() const;

 private:
  void compare_ignored();
  void differ(const std::string& tensor, const at::Tensor& reference, const at::Tensor& mirror);
  void differ(const std::string& what, const nlohmann::json& reference, const nlohmann::json& mirror);
  bool is_file(const std::string& name, const at::Tensor& value) const;
  bool may_share(const std::string& name) const;
  const Mirror& source_;
  Mirror& mirror_;
  const at::ScalarType dtype_;
  nlohmann::json differing_ = nlohmann::json::array();
  std::map<std::string, bool> seen_;  // reference parameters; true: proved equal
  std::map<std::string, bool> same_file_;
  std::map<std::string, std::vector<std::string>> casts_;
  int64_t compared_ = 0;
  const void* embedding_ = nullptr;  // the reference's, to see a tied head
};

}  // namespace lockstep
