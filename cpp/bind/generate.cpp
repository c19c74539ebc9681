// Generation in the Python module.
#include <ATen/core/grad_mode.h>

#include "bind/convert.h"
#include "generate/generation_config.h"
#include "generate/greedy.h"
#include "models/mirror.h"

namespace lockstep {

namespace {

/// Ctrl-C, while the GIL is released.
void check_signals() {
  py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

/// A run over a mirror's cache, and what it computes with.
class BoundDecoding {
 public:
  BoundDecoding(Mirror& mirror, const std::string& attn, const std::string& variant,
                const std::optional<std::pair<std::string, std::string>>& hypothesis, bool fast)
      : mirror_(mirror), arithmetic_(arithmetic_of(mirror, hypothesis, fast)) {
    begin(Variant::named(variant), parse_attn(attn));
  }
  /// The truth: the checkpoint in float64, the formulas as they are written.
  explicit BoundDecoding(const std::string& folder)
      : owned_(Mirror::open(folder)), mirror_(*owned_), arithmetic_(new Arithmetic(at::kDouble, Order::plain)) {
    mirror_.bind(at::kDouble);
    begin(Variant::named("5.18"), Attn::sdpa);
  }

  Decoding& decoding() { return *decoding_; }
  template <class F>
  auto guarded(F forward) {
    at::NoGradGuard no_grad;
    refuse_autocast();
    auto result = forward();
    mirror_.checkpoint().check_unchanged();
    return result;
  }
  at::Tensor prefill(const at::Tensor& ids, const at::Tensor& mask) {
    return guarded([&] { return decoding_->prefill(ids, mask); });
  }
  at::Tensor step(const at::Tensor& tokens) {
    return guarded([&] { return decoding_->step(tokens); });
  }
  /// What the forwards so far have left, by its capture point.
  std::vector<std::pair<std::string, at::Tensor>> states() const {
    std::vector<std::pair<std::string, at::Tensor>> list;
    const auto& layers = decoding_->cache().layers;
    for (size_t i = 0; i < layers.size(); ++i) {
      const auto path = "model.layers." + std::to_string(i);
      auto add = [&](const char* name, const at::Tensor& x) {
        if (x.defined()) list.emplace_back(path + name, x);
      };
      add(".linear_attn@conv_state", layers[i].conv_state);
      add(".linear_attn@recurrent_state", layers[i].recurrent_state);
      add(".self_attn@key_cache", layers[i].keys);
      add(".self_attn@value_cache", layers[i].values);
    }
    return list;
  }

 private:
  void begin(const Variant& variant, Attn attn) {
    decoding_.emplace(mirror_.model(), variant, attn, *arithmetic_, check_signals);
  }
  std::unique_ptr<Mirror> owned_;
  Mirror& mirror_;
  std::unique_ptr<Arithmetic> arithmetic_;
  std::optional<Decoding> decoding_;
};

GenerationConfig config_of(const Mirror& mirror) {
  return GenerationConfig::read(mirror.checkpoint().folder(), mirror.checkpoint().config());
}

py::dict describe(const GenerationConfig& c) {
  py::dict d;
  d["file"] = c.file, d["stop"] = c.stop, d["pad"] = c.pad, d["max_new_tokens"] = c.max_new_tokens;
  d["min_new_tokens"] = c.min_new_tokens, d["max_length"] = c.max_length, d["notes"] = c.notes;
  return d;
}

py::dict run_greedy(BoundDecoding& self, const at::Tensor& ids, const MaybeTensor& mask, const GreedyOptions& options,
                    const std::optional<py::function>& on_step) {
  auto passed = [&](const GreedyStep& step) {
    py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!on_step) return true;
    const auto answer = (*on_step)(step.index, step.tokens);
    return answer.is_none() || answer.cast<bool>();
  };
  Generated g;
  {
    py::gil_scoped_release release;
    g = self.guarded([&] { return greedy(self.decoding(), ids, or_undefined(mask), options, passed); });
  }
  py::dict d;
  d["tokens"] = g.tokens, d["stopped"] = g.stopped, d["logits"] = g.logits, d["steps"] = g.steps;
  d["prefill_seconds"] = g.prefill_seconds, d["decode_seconds"] = g.decode_seconds;
  return d;
}

}  // namespace

void bind_generate(py::module_& m) {
  m.def(
      "generation_config", [](const Mirror& mirror) { return describe(config_of(mirror)); }, py::arg("mirror"));
  m.def(
      "new_tokens",
      [](const Mirror& mirror, int64_t prompt, const std::optional<int64_t>& asked) {
        return config_of(mirror).new_tokens(prompt, asked);
      },
      py::arg("mirror"), py::arg("prompt"), py::arg("asked"));
  m.def("choose", &choose, py::arg("logits"), py::arg("stop"), py::arg("suppressed"),
        py::call_guard<py::gil_scoped_release>());

  py::class_<BoundDecoding>(m, "Decoding")
      .def(py::init<Mirror&, const std::string&, const std::string&,
                    const std::optional<std::pair<std::string, std::string>>&, bool>(),
           py::arg("mirror"), py::arg("attn") = "sdpa", py::arg("variant") = "5.18", py::arg("hypothesis") = py::none(),
           py::arg("fast") = false, py::keep_alive<1, 2>())
      .def_static(
          "truth", [](const std::string& folder) { return std::make_unique<BoundDecoding>(folder); }, py::arg("folder"),
          py::call_guard<py::gil_scoped_release>())
      .def(
          "prefill",
          [](BoundDecoding& self, const at::Tensor& ids, const MaybeTensor& mask) {
            return self.prefill(ids, or_undefined(mask));
          },
          py::arg("ids"), py::arg("mask") = py::none(), py::call_guard<py::gil_scoped_release>())
      .def("step", &BoundDecoding::step, py::arg("tokens"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("past", [](BoundDecoding& self) { return self.decoding().cache().past; })
      .def("states",
           [](const BoundDecoding& self) {
             py::dict d;
             for (const auto& [point, value] : self.states()) d[py::str(point)] = value;
             return d;
           })
      .def(
          "greedy",
          [](BoundDecoding& self, const at::Tensor& ids, const MaybeTensor& mask, const std::vector<int64_t>& stop,
             const std::optional<int64_t>& pad, int64_t max_new_tokens, int64_t min_new_tokens, bool keep_logits,
             const std::optional<py::function>& on_step) {
            return run_greedy(self, ids, mask, {stop, pad, max_new_tokens, min_new_tokens, keep_logits}, on_step);
          },
          py::arg("ids"), py::arg("mask"), py::arg("stop"), py::arg("pad"), py::arg("max_new_tokens"),
          py::arg("min_new_tokens") = 0, py::arg("keep_logits") = false, py::arg("on_step") = py::none());
}

}  // namespace lockstep
