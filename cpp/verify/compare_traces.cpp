#include "verify/compare_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/tensor_text.h"

namespace lockstep {

using nlohmann::json;

namespace {

constexpr const char* kHead = "lm_head.output";
constexpr const char* kTopIds = "lm_head@topk_ids";
constexpr const char* kTopLogprobs = "lm_head@topk_logprobs";

json number(double x) { return std::isfinite(x) ? json(x) : json(nullptr); }

json missing(const std::string& point, const std::string& input, const std::string& note) {
  return {{"point", point}, {"input", input}, {"verdict", "missing"}, {"max_abs", nullptr}, {"note", note}};
}

/// Fills in what compare() finds.
void measure(json& entry, const at::Tensor& x, const at::Tensor& y, const Gate& gate) {
  const auto m = compare(x, y, gate);
  entry["verdict"] = name(m.verdict);
  entry["elements"] = m.elements, entry["bad_elements"] = m.bad_elements;
  entry["max_ulp"] = number(m.max_ulp), entry["max_abs"] = number(m.max_abs);
  entry["rel_l2"] = number(m.rel_l2), entry["cosine"] = number(m.cosine);
  entry["worst_index"] = m.worst_index;
}

std::string shape_note(const at::Tensor& x, const at::Tensor& y) {
  if (x.sizes() != y.sizes()) return fmt::format("expected {}, found {}", shape_text(x.sizes()), shape_text(y.sizes()));
  if (x.scalar_type() == y.scalar_type()) return "";
  return fmt::format("expected {}, found {}", dtype_name(x.scalar_type()), dtype_name(y.scalar_type()));
}

class Comparison {
 public:
  Comparison(const NamedTrace& a, const NamedTrace& b, const Gate& gate) : a_(a), b_(b), gate_(gate) {}

  void run() {
    std::vector<std::string> order = a_.trace.points();
    const std::set<std::string> known(order.begin(), order.end());
    for (const auto& point : b_.trace.points()) {
      if (!known.count(point)) order.push_back(point);
    }
    for (const auto& f : b_.trace.forwards()) {
      for (const auto& point : order) one(f, point);
    }
    for (const auto* side : {&a_, &b_}) {
      for (const auto& tensor : side->trace.unpromised()) {
        const auto slash = tensor.find('/');
        const bool plain = slash == std::string::npos || slash + 1 == tensor.size();
        points.push_back(missing(plain ? tensor : tensor.substr(slash + 1), tensor.substr(0, slash),
                                 fmt::format("in {}, but not in its manifest", side->name)));
      }
      side->trace.check_unchanged();
    }
  }

  json points = json::array(), logits = json::array(), not_compared = json::array();

 private:
  void one(const TraceForward& f, const std::string& point) {
    const bool in_a = a_.trace.promised(f.name, point), in_b = b_.trace.promised(f.name, point);
    if ((!in_a && !in_b) || (point == kTopLogprobs && !in_a)) return;
    if (point == kTopIds && in_b && a_.trace.promised(f.name, kHead)) return top_k(f);
    if (!in_a || !in_b) {
      not_compared.push_back(f.name + "/" + point);
      return;
    }
    const auto x = a_.trace.tensor(f.name, point), y = b_.trace.tensor(f.name, point);
    if (!x.defined() || !y.defined()) {
      const auto& whose = x.defined() ? b_.name : a_.name;
      points.push_back(missing(point, f.name, fmt::format("promised by {}, but not there", whose)));
      return;
    }
    auto entry = missing(point, f.name, shape_note(x, y));
    measure(entry, x, y, gate_);
    points.push_back(entry);
    if (point == kHead && x.sizes() == y.sizes() && x.dim() == 3) {
      const auto agreement = compare_logits(x, y, f.mask);
      logits.push_back({{"input", f.name}, {"kl", number(agreement.kl)}, {"top1_agreement", agreement.top1_agreement}});
    }
  }

  /// Log-probabilities of the k tokens that `b` lists per position, against `a`'s whole logits [B, T, V].
  void top_k(const TraceForward& f) {
    const auto whole = a_.trace.tensor(f.name, kHead);
    const auto ids = b_.trace.tensor(f.name, kTopIds), theirs = b_.trace.tensor(f.name, kTopLogprobs);
    json agreement{{"input", f.name}, {"kl", nullptr}, {"top1_agreement", nullptr}};
    auto entry = missing(kTopLogprobs, f.name, "");
    judge_top_k(whole, ids, theirs, entry, agreement);
    points.push_back(entry);
    logits.push_back(agreement);
  }

  void judge_top_k(const at::Tensor& whole, const at::Tensor& ids, const at::Tensor& theirs, json& entry,
                   json& agreement) const {
    if (!whole.defined() || !ids.defined() || !theirs.defined()) {
      entry["note"] = "expected lm_head.output on one side, topk_ids and topk_logprobs on the other";
      return;
    }
    const bool alike = whole.dim() == 3 && ids.dim() == 3 && ids.sizes() == theirs.sizes() &&
                       ids.sizes().slice(0, 2) == whole.sizes().slice(0, 2) && ids.numel() > 0;
    if (!alike || ids.is_floating_point() || !theirs.is_floating_point()) {
      entry["verdict"] = "shape";
      entry["note"] =
          fmt::format("expected two of {} + [k], found {}, {}",
                      shape_text(whole.sizes().slice(0, std::min<size_t>(2, static_cast<size_t>(whole.dim())))),
                      shape_text(ids.sizes()), shape_text(theirs.sizes()));
      return;
    }
    const auto vocab = whole.size(-1);
    if (ids.min().item<int64_t>() < 0 || ids.max().item<int64_t>() >= vocab) {
      entry["verdict"] = "shape", entry["note"] = fmt::format("expected ids from 0 to {}", vocab - 1);
      return;
    }
    const auto index = ids.to(at::kLong);
    const auto mine = whole.to(at::kDouble).log_softmax(-1);
    const auto listed = mine.gather(-1, index), others = theirs.to(at::kDouble);
    measure(entry, listed.to(theirs.scalar_type()), theirs, gate_);
    // What the list leaves over is one further outcome on both sides.
    const auto rest = [](const at::Tensor& logprobs) { return (1 - logprobs.exp().sum(-1)).clamp_min(1e-300); };
    const auto left = rest(listed);
    const auto kl = (listed.exp() * (listed - others)).sum(-1) + left * (left / rest(others)).log();
    const auto top = index.gather(-1, theirs.argmax(-1, true)).squeeze(-1);
    if ((others.exp().sum(-1) <= 1 + 1e-4).all().item<bool>()) {  // else they are no probabilities
      agreement["kl"] = number(kl.mean().item<double>());
    }
    agreement["top1_agreement"] = (top == mine.argmax(-1)).to(at::kDouble).mean().item<double>();
  }

  const NamedTrace &a_, &b_;
  const Gate& gate_;
};

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || (a.sizes() == b.sizes() && at::equal(a, b)));
}

std::string past_text(const TraceForward& f) { return f.past.empty() ? "None" : "'" + f.past + "'"; }

}  // namespace

void same_inputs(const NamedTrace& a, const NamedTrace& b) {
  if (a.trace.dtype() != b.trace.dtype()) {
    throw InputError(fmt::format("dtype: {} is {}, {} is {}; expected traces of one dtype", a.name, a.trace.dtype(),
                                 b.name, b.trace.dtype()));
  }
  const auto only = [](const std::string& input, const NamedTrace& has, const NamedTrace& lacks) {
    throw InputError(fmt::format("input '{}': {} has it, {} does not; expected traces of the same inputs", input,
                                 has.name, lacks.name));
  };
  for (const auto& f : b.trace.forwards()) {
    if (!a.trace.has_forward(f.name)) only(f.name, b, a);
    const auto& other = a.trace.forward(f.name);
    for (const auto& [key, x, y] :
         {std::tuple("ids", other.ids, f.ids), std::tuple("positions", other.positions, f.positions),
          std::tuple("mask", other.mask, f.mask)}) {
      if (!same(x, y)) {
        throw InputError(
            fmt::format("input '{}': {} of {} and {} differ; expected the same inputs", f.name, key, a.name, b.name));
      }
    }
    if (other.past != f.past) {
      throw InputError(fmt::format("input '{}': past is {} in {} and {} in {}; expected the same inputs", f.name,
                                   past_text(other), a.name, past_text(f), b.name));
    }
  }
  for (const auto& f : a.trace.forwards()) {
    if (!b.trace.has_forward(f.name)) only(f.name, a, b);
  }
}

json compare_traces(const NamedTrace& a, const NamedTrace& b, const Gate& gate, bool bitwise) {
  same_inputs(a, b);
  Comparison c(a, b, gate);
  c.run();
  const auto passing = bitwise ? Verdict::identical : Verdict::agrees;
  auto worst = Verdict::identical;
  json first;
  bool only_logits = !c.points.empty();
  for (const auto& p : c.points) {
    const auto verdict = verdict_named(p["verdict"]);
    worst = std::max(worst, verdict);
    if (first.is_null() && verdict > passing) first = p;
    only_logits = only_logits && (p["point"] == kHead || p["point"] == kTopLogprobs);
  }
  const auto producer = [](const NamedTrace& t) { return t.trace.manifest().value("producer", json()); };
  json digest;
  if (const auto model = b.trace.manifest().find("model"); model != b.trace.manifest().end() && model->is_object()) {
    digest = model->value("digest", json());
  }
  return {{"format_version", 1},
          {"command", "compare"},
          {"verdict", c.points.empty() ? name(Verdict::missing) : name(worst)},
          {"model", {{"family", nullptr}, {"layer_types", nullptr}, {"digest", digest}}},
          {"pedigree", {{"a", producer(a)}, {"b", producer(b)}}},
          {"exit_code", first.is_null() && !c.points.empty() ? 0 : 1},
          {"options", {{"atol", gate.atol}, {"rtol", gate.rtol}, {"bitwise", bitwise}}},
          {"first", first},
          {"only_logits", only_logits},
          {"points", c.points},
          {"logits", c.logits},
          {"not_compared", c.not_compared}};
}

std::vector<std::string> comparison_lines(const json& data) {
  std::vector<std::string> lines;
  if (data["only_logits"]) {
    lines.push_back("the traces share no point inside of the model: only the logits were seen");
  }
  const auto passing = data["options"]["bitwise"] ? Verdict::identical : Verdict::agrees;
  size_t identical = 0;
  for (const auto& p : data["points"]) {
    identical += p["verdict"] == "identical";
    if (verdict_named(p["verdict"]) <= passing) continue;
    auto text = fmt::format("{} ({}): {}", p["point"].get<std::string>(), p["input"].get<std::string>(),
                            p["verdict"].get<std::string>());
    if (p["max_abs"].is_number()) {
      text += fmt::format("; worst |diff| {:.1e} at {}", p["max_abs"].get<double>(), p["worst_index"].dump());
    }
    if (const std::string note = p["note"]; !note.empty()) text += "; " + note;
    lines.push_back(text);
  }
  for (const auto& entry : data["logits"]) {
    const auto shown = [](const json& x, bool share) {
      if (!x.is_number()) return std::string("-");
      return share ? fmt::format("{:.1f}%", 100 * x.get<double>()) : fmt::format("{:.1e}", x.get<double>());
    };
    lines.push_back(fmt::format("{}: KL {}, top-1 agreement {}", entry["input"].get<std::string>(),
                                shown(entry["kl"], false), shown(entry["top1_agreement"], true)));
  }
  if (!data["not_compared"].empty()) {
    lines.push_back(fmt::format("not compared: {} points that only one trace promises", data["not_compared"].size()));
  }
  lines.push_back(fmt::format("{} of {} points identical", identical, data["points"].size()));
  lines.push_back(
      fmt::format("{}: {}", data["exit_code"] == 0 ? "passes" : "fails", data["verdict"].get<std::string>()));
  return lines;
}

}  // namespace lockstep
