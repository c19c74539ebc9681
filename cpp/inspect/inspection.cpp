#include "inspect/inspection.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "inspect/numbers.h"
#include "nn/run.h"

namespace lockstep::inspect {

namespace {

/// The seven captures, and the point that each one is; the mixer's name comes before ".output".
struct Named {
  const char* name;
  const char* point;
};
constexpr Named kNames[kCaptures] = {{"layer input", ".input"},
                                     {"after input_layernorm", ".input_layernorm.output"},
                                     {"mixer output", nullptr},
                                     {"after the first residual add", ".post_attention_layernorm.input"},
                                     {"after post_attention_layernorm", ".post_attention_layernorm.output"},
                                     {"mlp output", ".mlp.output"},
                                     {"layer output", ".output"}};
constexpr int kMixer = 2, kMixed = 3, kMlp = 5, kOut = 6;
constexpr int64_t kFollowed = 64;  // dims of a vector that are shown as it is written
constexpr int64_t kTop = 5;

int64_t checked_token(int64_t token, int64_t tokens) {
  const auto at = token < 0 ? token + tokens : token;
  if (at < 0 || at >= tokens) throw InputError(fmt::format("token {}: expected -{} to {}", token, tokens, tokens - 1));
  return at;
}

const at::Tensor& one_sequence(const at::Tensor& ids) {
  if (ids.dim() != 2 || ids.size(0) != 1 || ids.size(1) < 1) throw InputError("ids: expected one sequence, [1, T]");
  return ids;
}

/// [1, T, D] or [T, D] -> [T, D] float64.
at::Tensor rows(const at::Tensor& x) { return x.detach().reshape({-1, x.size(-1)}).to(at::kDouble); }

}  // namespace

Inspection::Inspection(const Mirror& mirror, const at::Tensor& ids, int64_t token)
    : mirror_(mirror),
      tokens_(one_sequence(ids).size(1)),
      token_(checked_token(token, tokens_)),
      last_id_(ids[0][-1].item<int64_t>()),
      layers_(static_cast<size_t>(mirror.model().layers())) {}

void Inspection::record(const std::string& point, const at::Tensor& value) {
  if (point == "model.embed_tokens.output") return embedding(value);
  constexpr std::string_view kLayers = "model.layers.";
  if (point.compare(0, kLayers.size(), kLayers) != 0) return;
  size_t digits = 0;
  const auto index = std::stoul(point.substr(kLayers.size()), &digits);
  if (index >= layers_.size()) return;
  auto& layer = layers_[index];
  const auto rest = point.substr(kLayers.size() + digits);
  for (int i = 0; i < kCaptures; ++i) {
    if (kNames[i].point && rest == kNames[i].point) return captured(layer, i, value);
  }
  for (const char* mixer : {"linear_attn", "self_attn"}) {
    if (rest != fmt::format(".{}.output", mixer)) continue;
    layer.mixer = mixer;
    return captured(layer, kMixer, value);
  }
  const auto keep = [&](at::Tensor& slot) { slot = value.detach().clone(); };
  if (rest == ".mlp.down_proj.input") layer.activation = rows(value).select(0, -1).clone();
  if (rest == ".self_attn@gate") keep(layer.gate);
  if (rest == ".self_attn@q_rope") keep(layer.q_rope);
  if (rest == ".self_attn@k_rope") keep(layer.k_rope);
  if (rest == ".linear_attn@decay") keep(layer.decay);
  if (rest == ".linear_attn@beta") keep(layer.beta);
  if (rest == ".linear_attn@recurrent_state") keep(layer.state);
}

void Inspection::embedding(const at::Tensor& value) {
  dtype_ = value.scalar_type();
  const auto stream = rows(value);
  streams_.push_back(stream);
  last_rows_.push_back(value.detach().select(1, -1).clone());
  sum_ = stream.clone();
  largest_ = stream.norm(2, {-1});
  follow(stream);
}

void Inspection::captured(Layer& layer, int index, const at::Tensor& value) {
  if (streams_.empty()) throw InputError("the inspector: a layer ran before the embedding");
  const auto x = rows(value);
  layer.captures[index] = spread(x);
  if (index == 0) layer.before = x;
  if (index == kMixer) layer.mixed = x;  // the delta, until the sum comes
  if (index == kMixed) {
    if (!layer.before.defined() || !layer.mixed.defined()) return;  // named by complete()
    wrote(layer, 0, layer.mixed, layer.before);
    layer.mixed = x;
    largest_ = at::maximum(largest_, x.norm(2, {-1}));
    follow(x);
  }
  if (index == kMlp && layer.mixed.defined()) wrote(layer, 1, x, layer.mixed);
  if (index == kOut) {
    streams_.push_back(x);
    last_rows_.push_back(value.detach().select(1, -1).clone());
    largest_ = at::maximum(largest_, x.norm(2, {-1}));
    follow(x);
    layer.before.reset(), layer.mixed.reset();
  }
}

/// What a sublayer adds, beside the stream that it adds to.
void Inspection::wrote(Layer& layer, int sublayer, const at::Tensor& delta, const at::Tensor& stream) {
  sum_ += delta;
  const auto size = stream.norm(2, {-1});
  const auto relative = delta.norm(2, {-1}) / size;
  layer.deltas[sublayer] = {{"relative", numbers(relative)}, {"cosine", numbers(cosines(delta, stream))}};
}

void Inspection::follow(const at::Tensor& stream) { followed_.push_back(stream[token_].clone()); }

void Inspection::complete() const {
  if (streams_.empty()) throw InputError("model.embed_tokens.output: it was never captured");
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto& layer = layers_[i];
    const auto missing = [&](const std::string& rest) {
      throw InputError(
          fmt::format("model.layers.{}{}: it was never captured; nothing can be told of this forward", i, rest));
    };
    for (int c = 0; c < kCaptures; ++c) {
      if (layer.captures[c].is_null()) missing(kNames[c].point ? kNames[c].point : " (mixer)");
    }
    if (layer.deltas[0].is_null() || layer.deltas[1].is_null()) missing(": its sums");
    if (!layer.activation.defined()) missing(".mlp.down_proj.input");
    if (layer.mixer == "self_attn" && !(layer.q_rope.defined() && layer.k_rope.defined())) missing(".self_attn@q_rope");
    if (layer.mixer == "linear_attn" && !(layer.decay.defined() && layer.beta.defined())) missing(".linear_attn@decay");
  }
}

nlohmann::json Inspection::finish(const at::Tensor& logits, const std::optional<int64_t>& target_in) {
  complete();
  const auto last = logits.detach().reshape({-1, logits.size(-1)}).select(0, -1);
  const auto probabilities = last.to(at::kDouble).softmax(-1);
  const auto answer = last.argmax().item<int64_t>();
  const auto target = target_in.value_or(answer);
  if (target < 0 || target >= last.numel()) {
    throw InputError(fmt::format("target {}: expected 0 to {}", target, last.numel() - 1));
  }

  auto list = nlohmann::json::array();
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto& layer = layers_[i];
    auto captures = nlohmann::json::array();
    for (int c = 0; c < kCaptures; ++c) {
      auto told = layer.captures[c];
      told["name"] = kNames[c].name;
      captures.push_back(std::move(told));
    }
    list.push_back({{"index", i},
                    {"type", mirror_.model().mechanisms().layer_types.at(i)},
                    {"captures", std::move(captures)},
                    {"writes", {{"mixer", layer.deltas[0]}, {"mlp", layer.deltas[1]}}},
                    {"mixer", mixer(layer)}});
  }

  at::Tensor normed;
  const auto all_rows = at::stack(last_rows_, 1);  // [1, L + 1, D]
  const auto lens_logits = head_on(all_rows, &normed)[0];
  auto depths = depth();
  for (size_t d = 0; d < streams_.size(); ++d) {
    const auto p = lens_logits[static_cast<int64_t>(d)].to(at::kDouble).softmax(-1);
    depths[d]["lens"] = lens(p, answer, target);
  }

  std::vector<at::Tensor> activations;
  for (const auto& layer : layers_) activations.push_back(layer.activation);
  const auto final_stream = streams_.back().select(0, -1);
  const auto rms = final_stream.pow(2).mean().sqrt().item<double>();
  auto told = nlohmann::json{{"target", target},
                             {"answer", answer},
                             {"next", most_probable(probabilities, 10)},
                             {"target_p", number(probabilities[target].item<double>())},
                             {"layers", std::move(list)},
                             {"depth", std::move(depths)},
                             {"sum_check", sum_check()},
                             {"stream", writes(normed)},
                             {"neurons", neurons(mirror_, activations, target, rms)}};
  told["finite"] = last.isfinite().all().item<bool>() && streams_.back().isfinite().all().item<bool>();

  // Kept is what other prompts ask for: last rows and activations.
  for (auto& stream : streams_) stream = stream.slice(0, -1).clone();
  for (auto& layer : layers_)
    layer.gate = layer.q_rope = layer.k_rope = layer.decay = layer.beta = layer.state = at::Tensor();
  followed_.clear(), last_rows_.clear();
  return told;
}

/// By depth, 0 the embedding: the stream's norm, and its direction beside the depth before and the end.
nlohmann::json Inspection::depth() const {
  auto list = nlohmann::json::array();
  for (size_t d = 0; d < streams_.size(); ++d) {
    const auto& x = streams_[d];
    list.push_back({{"norm", numbers(x.norm(2, {-1}))},
                    {"cosine_to_final", numbers(cosines(x, streams_.back()))},
                    {"cosine_to_previous", d ? numbers(cosines(x, streams_[d - 1])) : nlohmann::json(nullptr)}});
  }
  return list;
}

/// What the head would say of the last token's stream at one depth.
nlohmann::json Inspection::lens(const at::Tensor& p, int64_t answer, int64_t target) const {
  auto place = [&](int64_t id) -> nlohmann::json {
    const auto mine = p[id];
    if (!mine.isfinite().item<bool>()) return {{"id", id}, {"rank", nullptr}, {"p", nullptr}};
    const auto before = (p > mine).sum() + (p.slice(0, 0, id) == mine).sum();
    return {{"id", id}, {"rank", before.item<int64_t>() + 1}, {"p", number(mine.item<double>())}};
  };
  nlohmann::json told = {{"top", most_probable(p, kTop)}, {"answer", place(answer)}};
  if (target != answer) told["target"] = place(target);
  return told;
}

/// Final norm and head on rows [1, N, D] of the stream -> logits [1, N, V].
at::Tensor Inspection::head_on(const at::Tensor& stream_rows, at::Tensor* normed) const {
  auto& model = mirror_.model();
  Run run(Variant::named("5.18"), Attn::sdpa, Level::layer, nullptr, nullptr);
  *normed = model.find("model.norm")->apply(run, stream_rows, {});
  return model.find("lm_head")->apply(run, *normed, {});
}

/// The stream at the end against embedding + the sum of all deltas: each of the 2 L additions rounds once.
nlohmann::json Inspection::sum_check() const {
  const auto unit = dtype_ == at::kFloat  ? std::ldexp(1.0, -24)
                    : dtype_ == at::kHalf ? std::ldexp(1.0, -11)
                                          : std::ldexp(1.0, -8);
  const auto error = (streams_.back() - sum_).norm(2, {-1});  // [T]
  const auto bound = 2.0 * double(layers_.size()) * unit * largest_;
  const auto ratio = error / bound.clamp_min(1e-300);
  const auto worst = ratio.argmax().item<int64_t>();
  const bool passes = (error <= bound).all().item<bool>();
  return {{"passes", passes},
          {"token", worst},
          {"error", number(error[worst].item<double>())},
          {"bound", number(bound[worst].item<double>())},
          {"ratio", number(ratio[worst].item<double>())},
          {"unit_roundoff", unit}};
}

/// One token's vector after every write: at its strongest dims at the end.
nlohmann::json Inspection::writes(const at::Tensor& normed) const {
  const auto& end = followed_.back();
  const auto count = std::min<int64_t>(kFollowed, end.numel());
  const auto [dims, order] = std::get<1>(end.abs().topk(count)).sort();
  (void)order;
  auto list = nlohmann::json::array();
  for (const auto& x : followed_) list.push_back(numbers(x.index_select(0, dims)));
  auto dim_list = nlohmann::json::array();
  for (int64_t i = 0; i < count; ++i) dim_list.push_back(dims[i].item<int64_t>());
  nlohmann::json told = {{"token", token_}, {"dims", std::move(dim_list)}, {"values", std::move(list)}};
  // What the head reads: only of the last token is it computed.
  const bool is_last = token_ == tokens_ - 1;
  told["read"] = is_last ? numbers(normed[0][-1].index_select(0, dims)) : nlohmann::json(nullptr);
  return told;
}

nlohmann::json Inspection::mixer(const Layer& layer) const {
  if (layer.mixer == "self_attn") return full_attention(layer.gate, layer.q_rope, layer.k_rope);
  return delta_rule(layer.decay, layer.beta, layer.state);
}

double Inspection::activation(int64_t layer, int64_t neuron) const {
  if (layer < 0 || layer >= layers()) throw InputError(fmt::format("layer {}: expected 0 to {}", layer, layers() - 1));
  const auto& values = layers_[static_cast<size_t>(layer)].activation;
  if (!values.defined())
    throw InputError(fmt::format("model.layers.{}.mlp.down_proj.input: it was never captured", layer));
  if (neuron < 0 || neuron >= values.numel()) {
    throw InputError(fmt::format("neuron {}: expected 0 to {}", neuron, values.numel() - 1));
  }
  return values[neuron].item<double>();
}

nlohmann::json next_token(const at::Tensor& logits, int64_t target) {
  const auto last = logits.detach().reshape({-1, logits.size(-1)}).select(0, -1);
  const auto p = last.to(at::kDouble).softmax(-1);
  return {{"p", number(p[target].item<double>())}, {"top", most_probable(p, 3)}};
}

}  // namespace lockstep::inspect
