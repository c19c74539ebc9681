// Tokenizers in the Python module. Text crosses as UTF-8 bytes, so that invalid ones can be given.
#include "text/open.h"
#include "text/stream.h"
#include "text/unicode.h"
#include "text/utf8.h"

#include "bind/convert.h"

namespace lockstep {

namespace {

std::string text_of(const py::bytes& text) { return valid_utf8(std::string_view(text)); }

py::list pieces_of(const Tokenizer& tokenizer, const std::string& text, bool special) {
  std::vector<Piece> pieces;
  {
    py::gil_scoped_release release;
    pieces = tokenizer.pieces(text, special);
  }
  py::list list;
  for (const auto& p : pieces) list.append(py::make_tuple(p.id, p.text, p.begin, p.end));
  return list;
}

}  // namespace

void bind_text(py::module_& m) {
  m.def("unicode_tables_release", &unicode_tables_release);
  m.def(
      "unicode_class",
      [](const std::string& name) {
        std::vector<std::pair<uint32_t, uint32_t>> ranges;
        for (const auto& [first, last] : unicode_class(name)) ranges.emplace_back(first, last);
        return ranges;
      },
      py::arg("name"));
  m.def(
      "nfc", [](const std::string& text) { return nfc(text); }, py::arg("text"));
  py::class_<Tokenizer>(m, "Tokenizer")
      .def_static("open", &open_tokenizer, py::arg("folder"), py::call_guard<py::gil_scoped_release>())
      .def(
          "encode",
          [](const Tokenizer& self, const py::bytes& text, bool special) {
            const auto valid = text_of(text);
            py::gil_scoped_release release;
            return self.encode(valid, special);
          },
          py::arg("text"), py::arg("special") = true)
      .def(
          "pieces",
          [](const Tokenizer& self, const py::bytes& text, bool special) {
            return pieces_of(self, text_of(text), special);
          },
          py::arg("text"), py::arg("special") = true)
      .def(
          "decode",
          [](const Tokenizer& self, const std::vector<int64_t>& ids, bool skip_special) {
            py::gil_scoped_release release;
            return self.decode(ids, skip_special);
          },
          py::arg("ids"), py::arg("skip_special") = false)
      .def("id_of", &Tokenizer::id_of, py::arg("token"))
      .def_property_readonly("size", &Tokenizer::size)
      .def_property_readonly("bos", &Tokenizer::bos);
  py::class_<TextStream>(m, "TextStream")
      .def(py::init<const Tokenizer&>(), py::arg("tokenizer"), py::keep_alive<1, 2>())
      .def("add", &TextStream::add, py::arg("id"))
      .def("finish", &TextStream::finish);
}

}  // namespace lockstep
