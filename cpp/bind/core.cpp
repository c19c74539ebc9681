// The Python module lockstep._core. Thin: it turns tensors and strings, and releases the GIL around long work.
#include <ATen/core/grad_mode.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>
#include <optional>

#include "bind/convert.h"
#include "core/vector_math.h"
#include "generate/fast_arithmetic.h"
#include "models/mirror.h"
#include "verify/coverage.h"
#include "verify/hypotheses.h"
#include "verify/lockstep.h"
#include "verify/provenance.h"

using namespace lockstep;

std::unique_ptr<Arithmetic> lockstep::arithmetic_of(const Mirror& mirror,
                                                    const std::optional<std::pair<std::string, std::string>>& changed,
                                                    bool fast) {
  if (changed && fast) throw InputError("fast: not together with a hypothesis");
  if (fast) return std::make_unique<FastArithmetic>(mirror);
  if (!changed) return std::make_unique<Arithmetic>();
  const auto& h = hypothesis(changed->first);
  auto change = h.change();
  if (change.weights || change.given)
    throw InputError("hypothesis \"" + h.name + "\": it changes what is given, not the arithmetic of a run");
  change.value_of = h.first_try;
  return std::make_unique<Changed>(std::move(change), changed->second, at::kFloat, Order::hf);
}

namespace {

Inputs make_inputs(const at::Tensor& ids, const MaybeTensor& positions, const MaybeTensor& mask) {
  return {ids, or_undefined(positions), or_undefined(mask)};
}

/// Collects clones of what a run records, for Mirror.forward(points=...); or, if somebody listens, only says which
/// point is passed.
struct Collector final : Recorder {
  std::map<std::string, at::Tensor> captured;
  std::vector<std::string> order;
  std::optional<py::function> passed;
  void record(const std::string& point, const at::Tensor& value) override {
    if (passed) {
      py::gil_scoped_acquire acquire;
      (*passed)(point);
      return;
    }
    order.push_back(point);
    captured[point] = value.detach().clone();
  }
};

py::object describe(const Mirror& m) {
  std::map<std::string, int64_t> dtypes;
  for (const auto& [parameter, source] : m.match().source) {
    ++dtypes[dtype_name(torch_dtype(m.checkpoint().info(source).dtype))];
  }
  auto notes = m.checkpoint().notes();
  notes.insert(notes.end(), m.match().notes.begin(), m.match().notes.end());
  return to_python({{"family", m.family().name},
                    {"hf_class", m.family().hf_class},
                    {"layer_types", m.model().mechanisms().layer_types},
                    {"vocab", m.model().mechanisms().vocab},
                    {"mrope", m.model().mechanisms().mrope},
                    {"parameters", m.parameter_count()},
                    {"tensors", m.match().source.size()},
                    {"dtypes", dtypes},
                    {"ignored", m.match().ignored},
                    {"tied", m.match().tied},
                    {"notes", notes}});
}

py::object names(const std::string& folder) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& r : list_names(folder)) {
    const auto dtype = torch_dtype(r.dtype);
    rows.push_back({{"source", r.source},
                    {"parameter", r.parameter},
                    {"shape", r.shape},
                    {"file", r.file},
                    {"dtype", dtype == at::ScalarType::Undefined ? r.dtype : dtype_name(dtype)},
                    {"status", r.status},
                    {"problem", r.problem}});
  }
  return to_python(rows);
}

/// What a folder's config says of its family, with no look at the weights' names.
py::object family(const std::string& folder) {
  const auto checkpoint = Checkpoint::open(folder);
  const auto built = build_model(checkpoint.config(), folder + "/config.json");
  return to_python({{"family", built.family->name},
                    {"hf_class", built.family->hf_class},
                    {"layer_types", built.model->mechanisms().layer_types}});
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Lockstep's C++ core: strict loading, the mirror, comparison.";
  m.attr("torch_version") = LOCKSTEP_TORCH_VERSION;
  settle_vector_math();  // before the first forward of whoever loads this

  auto error = py::register_exception<Error>(m, "Error", PyExc_RuntimeError);
  py::register_exception<LoadError>(m, "LoadError", error.ptr());
  py::register_exception<InputError>(m, "InputError", error.ptr());

  m.def("names", &names, py::arg("folder"));
  m.def(
      "digest",
      [](const std::string& folder) {
        const auto checkpoint = Checkpoint::open(folder);
        return digest_of(checkpoint, checkpoint.digests());
      },
      py::arg("folder"), py::call_guard<py::gil_scoped_release>());
  m.def("family", &family, py::arg("folder"));
  m.def("families", [] {
    std::vector<std::string> list;
    for (const auto& f : families()) list.push_back(f.name);
    return list;
  });
  m.def(
      "level_of",
      [](const std::string& point) {
        switch (level_of(point)) {
          case Level::layer:
            return "layer";
          case Level::sublayer:
            return "sublayer";
          default:
            return "all";
        }
      },
      py::arg("point"));
  m.def(
      "same_bits",
      [](const at::Tensor& a, const at::Tensor& b) {
        return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && same_bits(a, b);
      },
      py::arg("a"), py::arg("b"), py::call_guard<py::gil_scoped_release>());
  m.def(
      "compare",
      [](const at::Tensor& reference, const at::Tensor& candidate, double atol, double rtol) {
        Metrics r;
        {
          py::gil_scoped_release release;
          r = compare(reference, candidate, {atol, rtol});
        }
        return to_python({{"verdict", name(r.verdict)},
                          {"elements", r.elements},
                          {"bad_elements", r.bad_elements},
                          {"max_ulp", r.max_ulp},
                          {"max_abs", r.max_abs},
                          {"rel_l2", r.rel_l2},
                          {"cosine", r.cosine},
                          {"worst_index", r.worst_index}});
      },
      py::arg("reference"), py::arg("candidate"), py::arg("atol") = 1e-5, py::arg("rtol") = 0.0);

  py::class_<Cache, std::shared_ptr<Cache>>(m, "Cache")
      .def_property_readonly("past", [](const Cache& c) { return c.past; })
      .def("copy", [](const Cache& c) { return std::make_shared<Cache>(c); });

  py::class_<Mirror>(m, "Mirror")
      .def_static("open", &Mirror::open, py::arg("folder"), py::call_guard<py::gil_scoped_release>())
      .def(
          "bind", [](Mirror& self, const std::string& dtype) { self.bind(parse_dtype(dtype)); }, py::arg("dtype"),
          py::call_guard<py::gil_scoped_release>())
      .def(
          "stream", [](Mirror& self, const std::string& dtype) { self.stream(parse_dtype(dtype)); }, py::arg("dtype"))
      .def("describe", &describe)
      .def("check_unchanged", [](const Mirror& self) { self.checkpoint().check_unchanged(); })
      .def(
          "parameter",
          [](const Mirror& self, const std::string& name) {
            if (!self.has_parameter(name)) throw InputError(name + ": the mirror has no such parameter");
            return self.value(name);
          },
          py::arg("name"))
      .def("parameters",
           [](const Mirror& self) {
             std::vector<std::string> list;
             for (const auto* p : self.parameters()) list.push_back(p->name);
             return list;
           })
      .def(
          "file_tensor",
          [](const Mirror& self, const std::string& name) {
            if (!self.has_parameter(name)) throw InputError(name + ": the mirror has no such parameter");
            return self.file_tensor(name);
          },
          py::arg("name"))
      .def("inv_freq", [](const Mirror& self) { return self.model().inv_freq(); })
      .def(
          "digests", [](const Mirror& self) { return self.checkpoint().digests(); },
          py::call_guard<py::gil_scoped_release>())
      .def(
          "digest", [](const Mirror& self) { return digest_of(self.checkpoint(), self.checkpoint().digests()); },
          py::call_guard<py::gil_scoped_release>())
      .def("new_cache", [](const Mirror& self) { return std::make_shared<Cache>(self.model().new_cache()); })
      .def(
          "check",
          [](const Mirror& self, const at::Tensor& ids, const MaybeTensor& positions, const MaybeTensor& mask,
             int64_t past, bool cached) { self.model().check(make_inputs(ids, positions, mask), past, cached); },
          py::arg("ids"), py::arg("positions"), py::arg("mask"), py::arg("past"), py::arg("cached"))
      .def(
          "forward",
          [](Mirror& self, const at::Tensor& ids, const MaybeTensor& positions, const MaybeTensor& mask,
             const std::shared_ptr<Cache>& cache, const std::string& attn, const std::string& variant,
             const std::optional<std::string>& points,
             const std::optional<std::pair<std::string, std::string>>& changed,
             const std::optional<py::function>& passed, bool fast) {
            Collector collector;
            collector.passed = passed;
            at::Tensor logits;
            {
              py::gil_scoped_release release;
              at::NoGradGuard no_grad;
              refuse_autocast();
              const auto v = Variant::named(variant);
              const auto arithmetic = arithmetic_of(self, changed, fast);
              Run run(v, parse_attn(attn), parse_level(points.value_or("layer")), points ? &collector : nullptr,
                      cache.get(), *arithmetic);
              logits = self.model().forward(run, make_inputs(ids, positions, mask));
              self.checkpoint().check_unchanged();
            }
            py::dict captured;
            for (const auto& point : collector.order) captured[py::str(point)] = collector.captured[point];
            return py::make_tuple(logits, captured);
          },
          py::arg("ids"), py::arg("positions") = py::none(), py::arg("mask") = py::none(),
          py::arg("cache") = py::none(), py::arg("attn") = "sdpa", py::arg("variant") = "5.18",
          py::arg("points") = py::none(), py::arg("hypothesis") = py::none(), py::arg("passed") = py::none(),
          py::arg("fast") = false);

  py::class_<Provenance>(m, "Provenance")
      .def(py::init([](const Mirror& source, Mirror& mirror, const std::string& dtype) {
             return std::make_unique<Provenance>(source, mirror, parse_dtype(dtype));
           }),
           py::arg("source"), py::arg("mirror"), py::arg("dtype"), py::keep_alive<1, 2>(), py::keep_alive<1, 3>())
      .def("bind", &Provenance::bind, py::call_guard<py::gil_scoped_release>())
      .def("lend", &Provenance::lend, py::arg("name"), py::arg("value"), py::call_guard<py::gil_scoped_release>())
      .def("still", &Provenance::still, py::arg("name"), py::arg("value"), py::call_guard<py::gil_scoped_release>())
      .def("compare_files", &Provenance::compare_files, py::call_guard<py::gil_scoped_release>())
      .def("reference_parameter", &Provenance::reference_parameter, py::arg("name"), py::arg("value"),
           py::call_guard<py::gil_scoped_release>())
      .def("reference_inv_freq", &Provenance::reference_inv_freq, py::arg("value"),
           py::call_guard<py::gil_scoped_release>())
      .def("finish", [](Provenance& self) {
        nlohmann::json j;
        {
          py::gil_scoped_release release;
          j = self.finish();
        }
        return to_python(j);
      });

  py::class_<LockstepForward>(m, "LockstepForward")
      .def(py::init([](Mirror& mirror, const std::string& variant, const std::string& attn, const std::string& points,
                       double atol, double rtol, const std::string& name, const at::Tensor& ids,
                       const MaybeTensor& positions, const MaybeTensor& mask, const std::shared_ptr<Cache>& cache) {
             return std::make_unique<LockstepForward>(mirror, Variant::named(variant), parse_attn(attn),
                                                      parse_level(points), Gate{atol, rtol},
                                                      ForwardSpec{name, make_inputs(ids, positions, mask), cache});
           }),
           py::arg("mirror"), py::arg("variant"), py::arg("attn"), py::arg("points"), py::arg("atol"), py::arg("rtol"),
           py::arg("name"), py::arg("ids"), py::arg("positions"), py::arg("mask"), py::arg("cache"),
           py::keep_alive<1, 2>())
      .def("reference", &LockstepForward::reference, py::arg("point"), py::arg("value"), py::arg("keep"),
           py::call_guard<py::gil_scoped_release>())
      .def("advance", &LockstepForward::advance, py::arg("index"), py::call_guard<py::gil_scoped_release>())
      .def("complete", &LockstepForward::complete, py::call_guard<py::gil_scoped_release>())
      .def("returned_logits", &LockstepForward::returned_logits, py::arg("logits"),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("mirror_seconds", &LockstepForward::mirror_seconds)
      .def("finish", [](LockstepForward& self) {
        nlohmann::json j;
        {
          py::gil_scoped_release release;
          j = self.finish();
        }
        return to_python(j);
      });

  m.def(
      "fingerprint", [](const at::Tensor& x) { return fingerprint(x.detach().cpu()); }, py::arg("x"));
  m.def(
      "compare_logits",
      [](const at::Tensor& reference, const at::Tensor& candidate, const MaybeTensor& mask) {
        const auto agreement = compare_logits(reference, candidate, or_undefined(mask));
        return to_python({{"kl", std::isfinite(agreement.kl) ? nlohmann::json(agreement.kl) : nlohmann::json(nullptr)},
                          {"top1_agreement", agreement.top1_agreement}});
      },
      py::arg("reference"), py::arg("candidate"), py::arg("mask") = py::none());

  bind_bisect(m);
  bind_export(m);
  bind_generate(m);
  bind_inspect(m);
  bind_text(m);

  py::class_<Coverage>(m, "Coverage")
      .def(py::init([](const Mirror& mirror) { return std::make_unique<Coverage>(mirror.model().mechanisms()); }),
           py::arg("mirror"))
      .def(
          "add",
          [](Coverage& self, const at::Tensor& ids, const MaybeTensor& positions, const MaybeTensor& mask, int64_t past,
             bool cached) { self.add(make_inputs(ids, positions, mask), past, cached); },
          py::arg("ids"), py::arg("positions"), py::arg("mask"), py::arg("past"), py::arg("cached"))
      .def("finish", [](const Coverage& self) { return to_python(self.finish()); });
}
