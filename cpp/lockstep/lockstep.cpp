#include "lockstep/lockstep.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "core/error.h"
#include "core/metrics.h"
#include "core/tensor_text.h"
#include "core/vector_math.h"
#include "models/mirror.h"
#include "verify/golden.h"
#include "verify/point_text.h"
#include "verify/replay.h"

namespace lockstep {

namespace {

struct Collector final : Recorder {
  void record(const std::string& point, const at::Tensor& value) override { captured[point] = value.clone(); }
  Captures captured;
};

Level level_named(const std::string& points) {
  if (points == "layer") return Level::layer;
  if (points == "sublayer") return Level::sublayer;
  if (points == "all") return Level::all;
  throw InputError(fmt::format("points \"{}\": expected layer, sublayer or all", points));
}

const TraceForward& forward_named(const Trace& trace, const std::string& name) {
  if (trace.has_forward(name)) return trace.forward(name);
  std::vector<std::string> known;
  for (const auto& f : trace.forwards()) known.push_back(f.name);
  throw InputError(fmt::format("forward \"{}\": the trace has {}", name, fmt::join(known, ", ")));
}

}  // namespace

GoldenTrace GoldenTrace::open(const std::string& path) { return GoldenTrace(open_golden(path)); }

const std::string& GoldenTrace::dtype() const { return trace_->dtype(); }

std::vector<std::string> GoldenTrace::forwards() const {
  std::vector<std::string> names;
  for (const auto& f : trace_->forwards()) names.push_back(f.name);
  return names;
}

const std::vector<std::string>& GoldenTrace::points() const { return trace_->points(); }

const at::Tensor& GoldenTrace::ids(const std::string& forward) const { return forward_named(*trace_, forward).ids; }

const at::Tensor& GoldenTrace::positions(const std::string& forward) const {
  return forward_named(*trace_, forward).positions;
}

const at::Tensor& GoldenTrace::mask(const std::string& forward) const { return forward_named(*trace_, forward).mask; }

const std::string& GoldenTrace::past(const std::string& forward) const { return forward_named(*trace_, forward).past; }

at::Tensor GoldenTrace::recorded(const std::string& forward, const std::string& point) const {
  forward_named(*trace_, forward);
  return trace_->tensor(forward, point);
}

Comparison GoldenTrace::compare(const std::string& forward, const std::string& point, const at::Tensor& mine,
                                double atol, double rtol) const {
  if (!(atol >= 0) || !(rtol >= 0)) throw InputError("atol and rtol: expected numbers from 0 up");
  const auto expected = recorded(forward, point);
  nlohmann::json found{{"point", point}, {"input", forward}, {"max_abs", nullptr}};
  Comparison c;
  c.max_abs = std::numeric_limits<double>::quiet_NaN();
  if (!expected.defined() || !mine.defined()) {
    c.verdict = name(Verdict::missing);
    found["note"] = expected.defined() ? "the tensor given is undefined" : "the trace holds no such point";
  } else {
    const auto m = lockstep::compare(expected, mine.detach().cpu(), {atol, rtol});
    c.verdict = name(m.verdict), c.passes = m.verdict <= Verdict::agrees;
    const auto described = [](const at::Tensor& x) {
      return dtype_name(x.scalar_type()) + " " + shape_text(x.sizes());
    };
    if (m.verdict == Verdict::dtype || m.verdict == Verdict::shape) {
      found["note"] = fmt::format("expected {}, found {}", described(expected), described(mine));
    } else {
      c.max_abs = m.max_abs;
      found["max_abs"] = m.max_abs, found["worst_index"] = m.worst_index;
      found["bad_elements"] = m.bad_elements, found["elements"] = m.elements;
    }
  }
  found["verdict"] = c.verdict;
  c.text = point_text(found);
  return c;
}

Model::Model(std::unique_ptr<Mirror> mirror) : mirror_(std::move(mirror)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::open(const std::string& folder, const std::string& dtype) {
  const auto run = run_dtype(dtype);
  if (!run) throw InputError(fmt::format("dtype \"{}\": expected float32, bfloat16 or float16", dtype));
  settle_vector_math();
  auto mirror = Mirror::open(folder);
  mirror->bind(*run);
  return Model(std::move(mirror));
}

Captures Model::run(const at::Tensor& ids, const std::string& points) {
  const at::NoGradGuard no_grad;
  const Inputs inputs{ids, {}, {}};
  auto& model = mirror_->model();
  model.check(inputs, 0, false);
  Collector collector;
  const auto variant = Variant::named("5.18");
  Run run(variant, Attn::sdpa, level_named(points), &collector, nullptr);
  model.forward(run, inputs);
  return std::move(collector.captured);
}

Captures Model::run(const GoldenTrace& golden, const std::string& forward, const std::string& points) {
  const at::NoGradGuard no_grad;
  const auto& trace = *golden.trace_;
  const RecordedThreads threads(trace);
  const auto level = level_named(points);
  const auto variant = Variant::named(trace.variant());
  std::vector<const TraceForward*> chain;
  for (auto name = forward; !name.empty(); name = chain.back()->past) chain.push_back(&forward_named(trace, name));
  auto& model = mirror_->model();
  std::optional<Cache> cache;
  if (trace.cached(forward)) cache = model.new_cache();
  Collector collector;
  for (auto f = chain.rbegin(); f != chain.rend(); ++f) {
    const Inputs inputs{(*f)->ids, (*f)->positions, (*f)->mask};
    model.check(inputs, cache ? cache->past : 0, cache.has_value());
    collector.captured.clear();
    Run run(variant, trace.attn() == "eager" ? Attn::eager : Attn::sdpa, level, &collector, cache ? &*cache : nullptr);
    model.forward(run, inputs);
  }
  return std::move(collector.captured);
}

ReplayReport replay(const std::string& folder, const GoldenTrace& golden, std::optional<double> atol) {
  settle_vector_math();
  ReplayOptions options;
  if (atol) options.gate = Gate{*atol, 0};
  const auto data = replay(folder, golden.trace_, options);
  ReplayReport report;
  report.passes = data["exit_code"] == 0, report.verdict = data["verdict"], report.json = data.dump(1);
  for (const auto& line : replay_lines(data)) report.text += line + "\n";
  return report;
}

}  // namespace lockstep
