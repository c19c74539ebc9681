// What the parts of the Python module share: how JSON, options and tensors cross.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/tensor_text.h"
#include "nn/run.h"

namespace lockstep {

namespace py = pybind11;

using MaybeTensor = std::optional<at::Tensor>;

inline at::Tensor or_undefined(const MaybeTensor& t) { return t ? *t : at::Tensor(); }

/// JSON crosses as text: NaN has become null on the C++ side.
inline py::object to_python(const nlohmann::json& j) {
  return py::module_::import("json").attr("loads")(j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

inline at::ScalarType parse_dtype(const std::string& name) {
  const auto dtype = run_dtype(name);
  if (!dtype) throw InputError("dtype \"" + name + "\": expected float32, bfloat16 or float16");
  return *dtype;
}

inline Attn parse_attn(const std::string& name) {
  if (name == "sdpa") return Attn::sdpa;
  if (name == "eager") return Attn::eager;
  throw InputError("attn \"" + name + "\": expected sdpa or eager");
}

inline Level parse_level(const std::string& name) {
  if (name == "layer") return Level::layer;
  if (name == "sublayer") return Level::sublayer;
  if (name == "all") return Level::all;
  throw InputError("points \"" + name + "\": expected layer, sublayer or all");
}

/// Trace and bisect, in bisect.cpp.
void bind_bisect(py::module_& m);
/// Tokenizers, in text.cpp.
void bind_text(py::module_& m);

}  // namespace lockstep
