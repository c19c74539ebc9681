// What the parts of the Python module share: how JSON, options and tensors cross.
#pragma once

#include <ATen/autocast_mode.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/tensor_text.h"
#include "models/mirror.h"
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

/// Raises InputError inside of torch.autocast.
inline void refuse_autocast() {
  if (at::autocast::is_autocast_enabled(at::kCPU))
    throw InputError("autocast is on: it gives other bits; run Lockstep outside of torch.autocast");
}

/// What a run of `mirror` computes with: Hugging Face's arithmetic; with a hypothesis applied, (name, module path),
/// which is how tests see that a wrong mirror is found; or the fast one.
std::unique_ptr<Arithmetic> arithmetic_of(const Mirror& mirror,
                                          const std::optional<std::pair<std::string, std::string>>& changed, bool fast);

/// Trace and bisect, in bisect.cpp; export and check, in export.cpp; and so on.
void bind_bisect(py::module_& m);
void bind_export(py::module_& m);
void bind_generate(py::module_& m);
void bind_inspect(py::module_& m);
void bind_text(py::module_& m);

}  // namespace lockstep
