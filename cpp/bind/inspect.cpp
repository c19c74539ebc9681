// The inspector in the Python module.
#include <ATen/core/grad_mode.h>

#include "bind/convert.h"
#include "core/error.h"
#include "inspect/ablation.h"
#include "inspect/inspection.h"

namespace lockstep {

namespace {

using inspect::Ablation;
using inspect::Held;
using inspect::Inspection;

/// Between layers: Ctrl-C, and whoever listens may raise.
std::function<void()> between(const std::optional<py::function>& passed) {
  return [&passed] {
    py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (passed) (*passed)();
  };
}

/// One forward of a single sequence over a new cache, the head on the last position alone: logits [1, 1, V].
at::Tensor forward(Mirror& mirror, const at::Tensor& ids, const std::string& attn, const std::string& variant,
                   Recorder& recorder, const std::optional<py::function>& passed) {
  at::NoGradGuard no_grad;
  refuse_autocast();
  auto cache = mirror.model().new_cache();
  const auto v = Variant::named(variant);
  Run run(v, parse_attn(attn), Level::all, &recorder, &cache);
  run.logits_to_keep = 1;
  const auto logits = mirror.model().forward(run, {ids, {}, {}}, between(passed));
  mirror.checkpoint().check_unchanged();
  return logits;
}

}  // namespace

void bind_inspect(py::module_& m) {
  py::class_<Inspection>(m, "Inspection")
      .def(py::init<const Mirror&, const at::Tensor&, int64_t>(), py::arg("mirror"), py::arg("ids"),
           py::arg("token") = -1, py::keep_alive<1, 2>())
      .def(
          "record",
          [](Inspection& self, const std::string& point, const at::Tensor& value) {
            at::NoGradGuard no_grad;
            self.record(point, value);
          },
          py::arg("point"), py::arg("value"), py::call_guard<py::gil_scoped_release>())
      .def(
          "run",
          [](Inspection& self, Mirror& mirror, const at::Tensor& ids, const std::string& attn,
             const std::string& variant,
             const std::optional<py::function>& passed) { return forward(mirror, ids, attn, variant, self, passed); },
          py::arg("mirror"), py::arg("ids"), py::arg("attn"), py::arg("variant"), py::arg("passed") = py::none(),
          py::call_guard<py::gil_scoped_release>())
      .def(
          "finish",
          [](Inspection& self, const at::Tensor& logits, const std::optional<int64_t>& target) {
            nlohmann::json j;
            {
              py::gil_scoped_release release;
              at::NoGradGuard no_grad;
              j = self.finish(logits, target);
            }
            return to_python(j);
          },
          py::arg("logits"), py::arg("target") = py::none())
      .def("activation", &Inspection::activation, py::arg("layer"), py::arg("neuron"))
      .def_property_readonly("last_id", &Inspection::last_id)
      .def_property_readonly("layers", &Inspection::layers);

  m.def(
      "ablated",
      [](Mirror& mirror, const at::Tensor& ids, const std::vector<std::tuple<int64_t, int64_t, double, bool>>& held,
         const std::string& attn, const std::string& variant, const std::optional<py::function>& passed) {
        std::vector<Held> list;
        for (const auto& [layer, neuron, value, last_only] : held) list.push_back({layer, neuron, value, last_only});
        Ablation ablation(list);
        return forward(mirror, ids, attn, variant, ablation, passed);
      },
      py::arg("mirror"), py::arg("ids"), py::arg("held"), py::arg("attn"), py::arg("variant"),
      py::arg("passed") = py::none(), py::call_guard<py::gil_scoped_release>());
  m.def(
      "meaning",
      [](const std::vector<const Inspection*>& prompts) {
        for (const auto* prompt : prompts) {
          if (!prompt) throw InputError("prompts: expected an Inspection each, found None");
        }
        return to_python(inspect::meaning(prompts));
      },
      py::arg("prompts"));
  m.def(
      "next_token",
      [](const at::Tensor& logits, int64_t target) { return to_python(inspect::next_token(logits, target)); },
      py::arg("logits"), py::arg("target"));
}

}  // namespace lockstep
