// Export, check, and the replay of golden traces.
#include "verify/export.h"
#include "bind/convert.h"
#include "verify/check.h"
#include "verify/replay.h"
#include "verify/rounding.h"

namespace lockstep {

namespace {

/// Calls back with the GIL, and lets Ctrl-C through.
Say saying(const std::optional<py::function>& progress) {
  return [progress](const std::string& text) {
    py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (progress) (*progress)(text);
  };
}

nlohmann::json from_python(const py::object& object) {
  return nlohmann::json::parse(py::module_::import("json").attr("dumps")(object).cast<std::string>());
}

}  // namespace

void bind_export(py::module_& m) {
  m.def("parse_size", &parse_size, py::arg("text"));
  m.def(
      "check_export",
      [](const std::string& folder, const std::optional<std::string>& source, const std::optional<std::string>& digest,
         const std::optional<py::function>& progress) {
        const auto say = saying(progress);
        nlohmann::json data;
        {
          py::gil_scoped_release release;
          data = check_export(folder, {source, digest}, say);
        }
        return to_python(data);
      },
      py::arg("folder"), py::arg("source") = py::none(), py::arg("digest") = py::none(),
      py::arg("progress") = py::none());

  m.def(
      "check_lines", [](const py::object& data, size_t shown) { return check_lines(from_python(data), shown); },
      py::arg("data"), py::arg("shown"));

  m.def(
      "settle_rounding",
      [](const py::object& points, const py::object& judged, int64_t layers) {
        return to_python(settle_rounding(from_python(points), from_python(judged), layers));
      },
      py::arg("points"), py::arg("judged"), py::arg("layers"));
  m.def(
      "replay",
      [](const std::string& folder, const std::string& golden, std::optional<double> atol, double rtol, bool bitwise,
         bool accept_rounding, bool stream, const std::optional<std::map<std::string, std::string>>& digests,
         bool converted, const std::set<std::string>& left_out, const std::optional<py::function>& progress) {
        ReplayOptions options;
        if (atol) options.gate = Gate{*atol, rtol};
        options.bitwise = bitwise, options.accept_rounding = accept_rounding;
        options.stream = stream;
        options.digests = digests, options.converted = converted, options.left_out = left_out;
        options.say = saying(progress);
        nlohmann::json data;
        {
          py::gil_scoped_release release;
          data = replay(folder, open_golden(golden), options);
        }
        return to_python(data);
      },
      py::arg("folder"), py::arg("golden"), py::arg("atol") = py::none(), py::arg("rtol") = 0.0,
      py::arg("bitwise") = false, py::arg("accept_rounding") = false, py::arg("stream") = false,
      py::arg("digests") = py::none(), py::arg("converted") = false, py::arg("left_out") = std::set<std::string>(),
      py::arg("progress") = py::none());
  m.def(
      "replay_lines", [](const py::object& data) { return replay_lines(from_python(data)); }, py::arg("data"));

  py::class_<Export>(m, "Export")
      .def(py::init([](const Mirror& source, const std::string& out, const std::optional<std::string>& dtype,
                       const std::optional<uint64_t>& max_shard_size, bool text_only) {
             ExportOptions options;
             if (dtype) options.dtype = parse_dtype(*dtype);
             options.max_shard_size = max_shard_size, options.text_only = text_only;
             py::gil_scoped_release release;
             return std::make_unique<Export>(source, out, options);
           }),
           py::arg("source"), py::arg("out"), py::arg("dtype") = py::none(), py::arg("max_shard_size") = py::none(),
           py::arg("text_only") = false, py::keep_alive<1, 2>())
      .def_property_readonly("folder", &Export::folder)
      .def_property_readonly("removed", &Export::removed)
      .def(
          "write",
          [](Export& self, const std::optional<py::function>& progress) {
            const auto say = saying(progress);
            py::gil_scoped_release release;
            self.write(say);
          },
          py::arg("progress") = py::none())
      .def(
          "reread",
          [](Export& self, const std::optional<py::function>& progress) {
            const auto say = saying(progress);
            py::gil_scoped_release release;
            self.reread(say);
          },
          py::arg("progress") = py::none())
      .def(
          "finish",
          [](Export& self, const std::string& report, const py::object& producer, const py::object& verification) {
            const auto p = from_python(producer), v = from_python(verification);
            nlohmann::json manifest;
            {
              py::gil_scoped_release release;
              manifest = self.finish(report, p, v);
            }
            return to_python(manifest);
          },
          py::arg("report"), py::arg("producer"), py::arg("verification"))
      .def("discard", [](Export& self) { self.discard(); });
}

}  // namespace lockstep
