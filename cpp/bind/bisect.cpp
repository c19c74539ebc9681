// Traces and bisection in the Python module.
#include "verify/bisect.h"

#include <ATen/core/grad_mode.h>

#include "bind/convert.h"
#include "io/trace.h"
#include "models/mirror.h"
#include "verify/compare_traces.h"
#include "verify/hypotheses.h"
#include "verify/len130.h"

namespace lockstep {

namespace {

std::shared_ptr<Trace> make_trace(const std::string& dtype, const std::string& attn, const std::string& variant,
                                  const py::list& forwards) {
  std::vector<TraceForward> list;
  for (const auto& entry : forwards) {
    const auto f = entry.cast<py::dict>();
    auto tensor = [&](const char* key) { return or_undefined(f[key].cast<MaybeTensor>()); };
    list.push_back({f["name"].cast<std::string>(), tensor("ids"), tensor("positions"), tensor("mask"),
                    f["past"].is_none() ? "" : f["past"].cast<std::string>()});
  }
  return std::make_shared<Trace>(dtype, attn, variant, std::move(list));
}

py::list forwards_of(const Trace& trace) {
  py::list list;
  auto maybe = [](const at::Tensor& x) { return x.defined() ? MaybeTensor(x) : std::nullopt; };
  for (const auto& f : trace.forwards()) {
    py::dict d;
    d["name"] = f.name, d["ids"] = f.ids, d["positions"] = maybe(f.positions), d["mask"] = maybe(f.mask);
    d["past"] = f.past.empty() ? py::object(py::none()) : py::object(py::str(f.past));
    list.append(d);
  }
  return list;
}

py::object run_bisect(const std::string& folder, std::shared_ptr<Trace> reference, std::shared_ptr<Trace> candidate,
                      const std::string& dtype, const std::string& attn, const at::Tensor& len130, bool values,
                      bool causes, bool thorough, bool points, const std::set<std::string>& without,
                      const py::function& progress, const std::set<std::string>& only) {
  BisectOptions options;
  options.dtype = dtype, options.attn = attn, options.values = values, options.causes = causes;
  options.thorough = thorough, options.points = points, options.without = without, options.only = only;
  options.len130 = {"len130", len130, {}, {}, ""};
  options.progress = [&](const std::string& text) {
    py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    progress(text);
  };
  nlohmann::json j;
  {
    py::gil_scoped_release release;
    j = bisect(folder, reference, candidate, options);
  }
  return to_python(j);
}

/// The whole model in float64, for `trace --source truth`.
struct Truth {
  explicit Truth(const std::string& folder) : mirror(Mirror::open(folder)) { mirror->bind(at::kDouble); }
  std::map<std::string, at::Tensor> forward(const Inputs& inputs, Cache* cache, Level level) {
    struct Copies final : Recorder {
      std::map<std::string, at::Tensor> at;
      std::vector<std::string> order;
      void record(const std::string& point, const at::Tensor& x) override {
        order.push_back(point), at[point] = x.clone();
      }
    } copies;
    at::NoGradGuard no_grad;
    Run run(Variant::named("5.18"), Attn::sdpa, level, &copies, cache, arithmetic);
    mirror->model().forward(run, inputs);
    order = copies.order;
    return copies.at;
  }
  const Arithmetic arithmetic{at::kDouble, Order::plain};
  std::unique_ptr<Mirror> mirror;
  std::vector<std::string> order;
};

}  // namespace

void bind_bisect(py::module_& m) {
  py::class_<Truth>(m, "Truth")
      .def(py::init<const std::string&>(), py::arg("folder"), py::call_guard<py::gil_scoped_release>())
      .def("new_cache", [](const Truth& t) { return std::make_shared<Cache>(t.mirror->model().new_cache()); })
      .def(
          "forward",
          [](Truth& t, const at::Tensor& ids, const MaybeTensor& positions, const MaybeTensor& mask,
             const std::shared_ptr<Cache>& cache, const std::string& points) {
            std::map<std::string, at::Tensor> values;
            {
              py::gil_scoped_release release;
              values = t.forward({ids, or_undefined(positions), or_undefined(mask)}, cache.get(), parse_level(points));
            }
            py::dict captured;
            for (const auto& point : t.order) captured[py::str(point)] = values.at(point);
            return captured;
          },
          py::arg("ids"), py::arg("positions"), py::arg("mask"), py::arg("cache"), py::arg("points"));

  py::class_<Trace, std::shared_ptr<Trace>>(m, "Trace")
      .def(py::init(&make_trace), py::arg("dtype"), py::arg("attn"), py::arg("variant"), py::arg("forwards"))
      .def_static(
          "open", [](const std::string& path) { return std::make_shared<Trace>(Trace::open(path)); }, py::arg("path"),
          py::call_guard<py::gil_scoped_release>())
      .def("add", &Trace::add, py::arg("forward"), py::arg("point"), py::arg("value"))
      .def_property_readonly("dtype", &Trace::dtype)
      .def_property_readonly("attn", &Trace::attn)
      .def_property_readonly("variant", &Trace::variant)
      .def_property_readonly("points", &Trace::points)
      .def_property_readonly("manifest", [](const Trace& t) { return to_python(t.manifest()); })
      .def_property_readonly("forwards", &forwards_of)
      .def("promised", &Trace::promised, py::arg("forward"), py::arg("point"))
      .def(
          "tensor",
          [](const Trace& t, const std::string& forward, const std::string& point) -> MaybeTensor {
            const auto x = t.tensor(forward, point);
            return x.defined() ? MaybeTensor(x) : std::nullopt;
          },
          py::arg("forward"), py::arg("point"))
      .def("unpromised", &Trace::unpromised)
      .def("repeated", &Trace::repeated)
      .def("check_unchanged", &Trace::check_unchanged);

  m.def("bisect", &run_bisect, py::arg("folder"), py::arg("reference"), py::arg("candidate"), py::arg("dtype"),
        py::arg("attn"), py::arg("len130"), py::arg("values"), py::arg("causes"), py::arg("thorough"),
        py::arg("points"), py::arg("without"), py::arg("progress"), py::arg("only") = std::set<std::string>());
  m.def(
      "same_inputs",
      [](const Trace& a, const std::string& a_name, const Trace& b, const std::string& b_name) {
        same_inputs({a, a_name}, {b, b_name});
      },
      py::arg("a"), py::arg("a_name"), py::arg("b"), py::arg("b_name"));
  m.def(
      "compare_traces",
      [](const Trace& a, const std::string& a_name, const Trace& b, const std::string& b_name, double atol, double rtol,
         bool bitwise) {
        nlohmann::json data;
        {
          py::gil_scoped_release release;
          data = compare_traces({a, a_name}, {b, b_name}, {atol, rtol}, bitwise);
        }
        return to_python(data);
      },
      py::arg("a"), py::arg("a_name"), py::arg("b"), py::arg("b_name"), py::arg("atol"), py::arg("rtol"),
      py::arg("bitwise"));
  m.def("len130_ids", &len130_ids, py::arg("vocab"));
  m.def("hypotheses", [] {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& h : hypotheses()) {
      list.push_back({{"name", h.name},
                      {"class", h.fault_class == FaultClass::formula ? "formula" : "precision"},
                      {"parameter", h.parameter.empty() ? nlohmann::json(nullptr) : nlohmann::json(h.parameter)}});
    }
    return to_python(list);
  });
}

}  // namespace lockstep
