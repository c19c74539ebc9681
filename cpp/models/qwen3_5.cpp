// Qwen3.5, text. mirrors transformers 5.10 to 5.24, models/qwen3_5/modeling_qwen3_5.py
//   B batch, T tokens, D hidden_size, F intermediate_size, V vocab, H heads, G key/value heads, K head_dim,
//   Hk / Hv linear key / value heads, Dk / Dv their dims, C = 2 Hk Dk + Hv Dv conv channels
#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "models/registry.h"
#include "nn/attention.h"
#include "nn/gated_delta_rule.h"
#include "nn/layers.h"
#include "nn/masks.h"
#include "nn/rope.h"

namespace lockstep {

using at::indexing::Ellipsis;
using at::indexing::None;
using at::indexing::Slice;

namespace {

struct Config {
  int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers;
  int64_t num_attention_heads, num_key_value_heads, head_dim;
  int64_t linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, linear_value_head_dim;
  int64_t linear_conv_kernel_dim;
  double rms_norm_eps;
  bool attention_bias;
  std::vector<std::string> layer_types;
  RopeConfig rope;

  static Config read(ConfigReader& r);
};

Config Config::read(ConfigReader& r) {
  Config c;
  c.vocab_size = r.require_size("vocab_size");
  c.hidden_size = r.require_size("hidden_size");
  c.intermediate_size = r.require_size("intermediate_size");
  c.num_hidden_layers = r.require_size("num_hidden_layers", 1, kMostLayers);
  c.num_attention_heads = r.require_size("num_attention_heads");
  c.num_key_value_heads = r.require_size("num_key_value_heads");
  c.head_dim = r.require_size("head_dim", 2, kLargestHead);
  c.linear_num_key_heads = r.require_size("linear_num_key_heads");
  c.linear_num_value_heads = r.require_size("linear_num_value_heads");
  c.linear_key_head_dim = r.require_size("linear_key_head_dim");
  c.linear_value_head_dim = r.require_size("linear_value_head_dim");
  c.linear_conv_kernel_dim = r.require_size("linear_conv_kernel_dim", 2);
  c.rms_norm_eps = r.require_positive("rms_norm_eps");
  c.attention_bias = r.find<bool>("attention_bias").value_or(false);
  if (c.num_attention_heads % c.num_key_value_heads) {
    r.fail("num_key_value_heads", fmt::format("expected a divisor of num_attention_heads {}, found {}",
                                              c.num_attention_heads, c.num_key_value_heads));
  }
  if (c.linear_num_value_heads % c.linear_num_key_heads) {
    r.fail("linear_num_key_heads", fmt::format("expected a divisor of linear_num_value_heads {}, found {}",
                                               c.linear_num_value_heads, c.linear_num_key_heads));
  }
  const auto interval = r.find<int64_t>("full_attention_interval");
  if (interval && *interval < 1)
    r.fail("full_attention_interval", fmt::format("expected 1 or more, found {}", *interval));
  std::vector<std::string> by_interval;
  for (int64_t i = 0; interval && i < c.num_hidden_layers; ++i) {
    by_interval.push_back((i + 1) % *interval ? "linear_attention" : "full_attention");
  }
  if (auto types = r.find<std::vector<std::string>>("layer_types")) {
    c.layer_types = *types;
    if (interval && static_cast<int64_t>(types->size()) == c.num_hidden_layers && *types != by_interval) {
      r.fail("full_attention_interval",
             fmt::format("is {}, but layer_types says otherwise: expected one pattern", *interval));
    }
  } else if (interval) {
    c.layer_types = by_interval;
  } else {
    r.fail("layer_types", "expected a list (or full_attention_interval), found nothing; there is no default");
  }
  if (static_cast<int64_t>(c.layer_types.size()) != c.num_hidden_layers) {
    r.fail("layer_types",
           fmt::format("expected {} entries (num_hidden_layers), found {}", c.num_hidden_layers, c.layer_types.size()));
  }
  bool any_full = false;
  for (const auto& type : c.layer_types) {
    any_full |= type == "full_attention";
    if (type != "linear_attention" && type != "full_attention") {
      r.fail("layer_types",
             fmt::format("\"{}\" is not implemented (implemented: linear_attention, full_attention)", type));
    }
  }
  if (!any_full) r.fail("layer_types", "no full_attention layer: transformers cannot size its masks without one");
  c.rope = read_rope(r, /*multimodal=*/true, /*partial=*/0.25);  // HF's own factor where the config has none
  if (static_cast<int64_t>(double(c.head_dim) * c.rope.partial_rotary_factor) < 1) {
    r.fail("head_dim", fmt::format("expected a rotary part of at least one dim, found {} x {}", c.head_dim,
                                   c.rope.partial_rotary_factor));
  }
  r.expect("hidden_act", "silu");
  r.expect("attn_output_gate", true);
  r.expect("mamba_ssm_dtype", "float32");
  r.expect("mlp_only_layers", nlohmann::json::array());
  r.ignore({"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"});
  return c;
}

/// hidden_states [B, T, D] -> [B, T, D]. mirrors Qwen3_5GatedDeltaNet
struct GatedDeltaNet : Module {
  GatedDeltaNet(Module* parent, const Config& c, int64_t layer_idx);
  at::Tensor forward(Run& run, const at::Tensor& hidden_states, const at::Tensor& mask);
  at::Tensor apply(Run& run, const at::Tensor& hidden_states, const Context& context) override {
    return forward(run, hidden_states, context.recurrent_mask);
  }

  struct Conv1d : Module {  // HF hands its weight to a function, so the module itself is no capture point
    Conv1d(Module* parent, const std::string& name, int64_t channels, int64_t kernel)
        : Module(parent, name), weight(parameter("weight", {channels, 1, kernel})) {}
    const at::Tensor& weight;  // [C, 1, kernel]
  };

  const int64_t layer_idx, Hk, Hv, Dk, Dv, kernel;
  const at::Tensor& dt_bias;  // [Hv]
  const at::Tensor& A_log;    // [Hv]
  Conv1d conv1d;
  GatedRMSNorm norm;
  Linear out_proj, in_proj_qkv, in_proj_z, in_proj_b, in_proj_a;

 private:
  at::Tensor convolve(Run& run, LayerCache* cache, const at::Tensor& mixed_qkv);
};

GatedDeltaNet::GatedDeltaNet(Module* parent, const Config& c, int64_t layer_idx)
    : Module(parent, "linear_attn"),
      layer_idx(layer_idx),
      Hk(c.linear_num_key_heads),
      Hv(c.linear_num_value_heads),
      Dk(c.linear_key_head_dim),
      Dv(c.linear_value_head_dim),
      kernel(c.linear_conv_kernel_dim),
      dt_bias(parameter("dt_bias", {Hv})),
      A_log(parameter("A_log", {Hv})),
      conv1d(this, "conv1d", 2 * Hk * Dk + Hv * Dv, kernel),
      norm(this, "norm", Dv, c.rms_norm_eps),
      out_proj(this, "out_proj", Hv * Dv, c.hidden_size),
      in_proj_qkv(this, "in_proj_qkv", c.hidden_size, 2 * Hk * Dk + Hv * Dv),
      in_proj_z(this, "in_proj_z", c.hidden_size, Hv * Dv),
      in_proj_b(this, "in_proj_b", c.hidden_size, Hv),
      in_proj_a(this, "in_proj_a", c.hidden_size, Hv) {}

/// Causal depthwise convolution and SiLU: [B, C, T] -> [B, C, T]; reads and replaces the cache's conv state.
at::Tensor GatedDeltaNet::convolve(Run& run, LayerCache* cache, const at::Tensor& mixed_qkv) {
  const auto tokens = mixed_qkv.size(2);
  auto conv = [&](const at::Tensor& x, int64_t padding) {
    return run.arithmetic.conv(*this, x, conv1d.weight, padding);
  };
  const bool has_past = cache && cache->conv_state.defined();
  if (has_past && tokens == 1) {  // one step: the state is the whole left context
    const auto context = at::cat({cache->conv_state, mixed_qkv}, -1);
    cache->conv_state = context.index({Slice(), Slice(), Slice(-kernel, None)}).clone();
    return run.arithmetic.silu(*this, conv(context, 0).slice(2, -1));
  }
  auto context = has_past ? at::cat({cache->conv_state, mixed_qkv}, -1) : mixed_qkv;
  if (cache) {
    auto padded = context;
    if (context.size(2) < kernel) padded = at::pad(context, {kernel - context.size(2), 0});
    cache->conv_state = padded.index({Slice(), Slice(), Slice(-kernel, None)}).clone();
    if (run.variant.conv_pads_short_prefill) context = padded;
  }
  const auto out = run.arithmetic.silu(*this, conv(context, kernel - 1).slice(2, 0, context.size(2)));
  return cache ? out.slice(2, -tokens) : out;
}

at::Tensor GatedDeltaNet::forward(Run& run, const at::Tensor& hidden_in, const at::Tensor& mask_in) {
  const auto dtype = hidden_in.scalar_type();
  const auto mask = run.arithmetic.recurrent_mask(*this, mask_in);
  const auto hidden_states = mask.defined() ? (hidden_in * mask.unsqueeze(-1)).to(dtype) : hidden_in;
  const auto B = hidden_states.size(0), T = hidden_states.size(1);
  auto* cache = run.cache ? &run.cache->layers[layer_idx] : nullptr;
  const bool has_past = cache && cache->conv_state.defined();

  // 1. Project and convolve.
  auto mixed_qkv = run(in_proj_qkv, hidden_states).transpose(1, 2);      // [B, C, T]
  const auto z = run(in_proj_z, hidden_states).reshape({B, T, -1, Dv});  // [B, T, Hv, Dv]
  const auto b = run(in_proj_b, hidden_states);                          // [B, T, Hv]
  const auto a = run(in_proj_a, hidden_states);
  mixed_qkv = run.capture(*this, "conv", convolve(run, cache, mixed_qkv));
  mixed_qkv = mixed_qkv.transpose(1, 2);  // [B, T, C]

  // 2. Split; each key head serves Hv / Hk value heads in a row.
  const auto split = at::split_with_sizes(mixed_qkv, {Hk * Dk, Hk * Dk, Hv * Dv}, -1);
  DeltaRuleInputs in;
  in.query = split[0].reshape({B, T, -1, Dk});
  in.key = split[1].reshape({B, T, -1, Dk});
  in.value = split[2].reshape({B, T, -1, Dv});
  in.query = run.arithmetic.repeat_heads(*this, in.query, Hv / Hk, 2);
  in.key = run.arithmetic.repeat_heads(*this, in.key, Hv / Hk, 2);
  in.beta = run.capture(*this, "beta", run.arithmetic.beta(*this, b));
  in.decay = run.capture(*this, "decay", run.arithmetic.decay(*this, A_log, a, dt_bias));

  // 3. The delta rule: a single step from a cached state, else by chunks.
  if (has_past) in.initial_state = run.arithmetic.state_in(*this, cache->recurrent_state);
  auto out = has_past && T == 1 ? recurrent_gated_delta_rule(run, *this, in) : chunk_gated_delta_rule(run, *this, in);
  out.output = run.capture(*this, "delta", out.output);
  if (cache) {
    const auto state = run.variant.state_in_run_dtype ? out.state.to(dtype) : out.state;
    cache->conv_state = run.capture(*this, "conv_state", cache->conv_state);
    cache->recurrent_state = run.capture(*this, "recurrent_state", run.arithmetic.state_out(*this, state));
  }

  // 4. Gated norm and output projection.
  const auto core = run(norm, out.output.reshape({-1, Dv}), z.reshape({-1, Dv}));
  return run(out_proj, core.reshape({B, T, -1}));
}

/// hidden_states [B, T, D] -> [B, T, D]. mirrors Qwen3_5Attention
struct Attention : Module {
  Attention(Module* parent, const Config& c, int64_t layer_idx);
  at::Tensor forward(Run& run, const at::Tensor& hidden_states, const at::Tensor& cos, const at::Tensor& sin,
                     const at::Tensor& mask);
  at::Tensor apply(Run& run, const at::Tensor& hidden_states, const Context& context) override {
    return forward(run, hidden_states, context.cos, context.sin, context.mask);
  }

  const int64_t layer_idx, K;
  Linear q_proj, k_proj, v_proj, o_proj;
  OffsetRMSNorm q_norm, k_norm;
};

Attention::Attention(Module* parent, const Config& c, int64_t layer_idx)
    : Module(parent, "self_attn"),
      layer_idx(layer_idx),
      K(c.head_dim),
      q_proj(this, "q_proj", c.hidden_size, c.num_attention_heads * K * 2, c.attention_bias),
      k_proj(this, "k_proj", c.hidden_size, c.num_key_value_heads * K, c.attention_bias),
      v_proj(this, "v_proj", c.hidden_size, c.num_key_value_heads * K, c.attention_bias),
      o_proj(this, "o_proj", c.num_attention_heads * K, c.hidden_size, c.attention_bias),
      q_norm(this, "q_norm", K, c.rms_norm_eps),
      k_norm(this, "k_norm", K, c.rms_norm_eps) {}

at::Tensor Attention::forward(Run& run, const at::Tensor& hidden_states, const at::Tensor& cos, const at::Tensor& sin,
                              const at::Tensor& mask) {
  const auto B = hidden_states.size(0), T = hidden_states.size(1);

  // 1. Project. Each head's rows of q_proj are [query, gate].
  const auto pair = run.arithmetic.split_pair(*this, run(q_proj, hidden_states), K);
  const auto q = run.capture(*this, "q", pair.first);                             // [B, T, H, K]
  const auto gate = run.capture(*this, "gate", pair.second.reshape({B, T, -1}));  // [B, T, H * K]

  // 2. Norm over each head, then RoPE on the first rotary_dim dims.
  auto query = run(q_norm, q.view({B, T, -1, K})).transpose(1, 2);                         // [B, H, T, K]
  auto key = run(k_norm, run(k_proj, hidden_states).view({B, T, -1, K})).transpose(1, 2);  // [B, G, T, K]
  auto value = run(v_proj, hidden_states).view({B, T, -1, K}).transpose(1, 2);
  query = run.arithmetic.rotate(*this, query, cos.unsqueeze(1), sin.unsqueeze(1), /*partial=*/true);
  key = run.arithmetic.rotate(*this, key, cos.unsqueeze(1), sin.unsqueeze(1), /*partial=*/true);
  query = run.capture(*this, "q_rope", query);
  key = run.capture(*this, "k_rope", key);

  // 3. Cache.
  if (run.cache) {
    auto& cache = run.cache->layers[layer_idx];
    cache.append(key, value);
    key = cache.keys = run.capture(*this, "key_cache", cache.keys);
    value = cache.values = run.capture(*this, "value_cache", cache.values);
  }

  // 4. Attend, gate, project.
  auto context = attention(run, *this, query, key, value, mask, std::pow(double(K), -0.5));  // [B, T, H, K]
  context = run.capture(*this, "context", context).reshape({B, T, -1}).contiguous();
  return run(o_proj, run.arithmetic.gate(*this, context, gate));
}

/// hidden_states [B, T, D] -> [B, T, D]. mirrors Qwen3_5DecoderLayer
struct DecoderLayer : Module {
  DecoderLayer(Module* parent, const Config& c, int64_t index);
  at::Tensor forward(Run& run, const at::Tensor& hidden_states, const Context& context);

  std::unique_ptr<GatedDeltaNet> linear_attn;  // one of the two
  std::unique_ptr<Attention> self_attn;
  SwiGLU mlp;
  OffsetRMSNorm input_layernorm, post_attention_layernorm;
};

DecoderLayer::DecoderLayer(Module* parent, const Config& c, int64_t index)
    : Module(parent, std::to_string(index)),
      linear_attn(c.layer_types[index] == "linear_attention" ? std::make_unique<GatedDeltaNet>(this, c, index)
                                                             : nullptr),
      self_attn(linear_attn ? nullptr : std::make_unique<Attention>(this, c, index)),
      mlp(this, "mlp", c.hidden_size, c.intermediate_size),
      input_layernorm(this, "input_layernorm", c.hidden_size, c.rms_norm_eps),
      post_attention_layernorm(this, "post_attention_layernorm", c.hidden_size, c.rms_norm_eps) {}

at::Tensor DecoderLayer::forward(Run& run, const at::Tensor& hidden_in, const Context& context) {
  auto residual = hidden_in;
  auto hidden_states = run(input_layernorm, hidden_in);
  hidden_states = linear_attn ? run(*linear_attn, hidden_states, context.recurrent_mask)
                              : run(*self_attn, hidden_states, context.cos, context.sin, context.mask);
  hidden_states = run.arithmetic.residual(*this, residual, hidden_states);

  residual = hidden_states;
  hidden_states = run(post_attention_layernorm, hidden_states);
  hidden_states = run(mlp, hidden_states);
  return run.arithmetic.residual(*this, residual, hidden_states);
}

/// x [B, T, D] and positions [3, B, T] -> cos, sin [B, T, rotary_dim]. mirrors Qwen3_5TextRotaryEmbedding
struct TextRotaryEmbedding : Module {
  TextRotaryEmbedding(Module* parent, const Config& c)
      : Module(parent, "rotary_emb"),
        inv_freq(inverse_frequencies(c.rope, c.head_dim)),
        rope(c.rope),
        head_dim(c.head_dim) {}
  std::tuple<at::Tensor, at::Tensor> forward(Run& run, const at::Tensor& x, const at::Tensor& positions);

  const at::Tensor inv_freq;  // [rotary_dim / 2] float32, in no file
  const RopeConfig rope;
  const int64_t head_dim;

 private:
  at::Tensor by_formula(const Run& run) const;
  at::Tensor interleave(const at::Tensor& freqs) const;
};

/// inv_freq; for the truth in float64, and under a hypothesis with its theta.
at::Tensor TextRotaryEmbedding::by_formula(const Run& run) const {
  auto changed = rope;
  changed.theta = run.arithmetic.number(*this, "theta", rope.theta);
  if (run.arithmetic.up == at::kDouble) return inverse_frequencies(changed, head_dim, at::kDouble);
  return changed.theta == rope.theta ? inv_freq : inverse_frequencies(changed, head_dim);
}

std::tuple<at::Tensor, at::Tensor> TextRotaryEmbedding::forward(Run& run, const at::Tensor& x,
                                                                const at::Tensor& positions_in) {
  const auto frequencies = run.capture(*this, "inv_freq", run.arithmetic.inv_freq(*this, by_formula(run)));
  const auto positions = run.arithmetic.positions(*this, positions_in);
  const auto freqs_in = run.upcast(frequencies).view({1, 1, -1, 1}).expand({3, positions.size(1), -1, 1});
  const auto steps = run.upcast(positions.unsqueeze(2));           // [3, B, 1, T]
  const auto freqs = at::matmul(freqs_in, steps).transpose(2, 3);  // [3, B, T, rotary_dim / 2]
  const auto cos_table = interleave(freqs.cos()).to(x.scalar_type());
  const auto sin_table = interleave(freqs.sin()).to(x.scalar_type());
  auto [cos, sin] = run.arithmetic.tables(*this, cos_table, sin_table);
  cos = run.capture(*this, "cos", cos);
  sin = run.capture(*this, "sin", sin);
  return {cos, sin};
}

/// Three rows (time, height, width) into one: frequency i is row i % 3's, up to each row's section; then twice.
at::Tensor TextRotaryEmbedding::interleave(const at::Tensor& freqs) const {
  auto mixed = freqs[0].clone();
  for (int64_t row : {1, 2}) {
    const Slice every_third(row, rope.mrope_section[row] * 3, 3);
    mixed.index_put_({Ellipsis, every_third}, freqs[row].index({Ellipsis, every_third}));
  }
  return at::cat({mixed, mixed}, -1);
}

/// mirrors Qwen3_5TextModel
struct TextModel : Module {
  TextModel(Module* parent, const Config& c);

  Embedding embed_tokens;
  Module layer_list;  // HF's ModuleList: a name, no forward
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  OffsetRMSNorm norm;
  TextRotaryEmbedding rotary_emb;
};

TextModel::TextModel(Module* parent, const Config& c)
    : Module(parent, "model"),
      embed_tokens(this, "embed_tokens", c.vocab_size, c.hidden_size),
      layer_list(this, "layers"),
      norm(this, "norm", c.hidden_size, c.rms_norm_eps),
      rotary_emb(this, c) {
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) layers.push_back(std::make_unique<DecoderLayer>(&layer_list, c, i));
}

/// mirrors Qwen3_5ForCausalLM
struct ForCausalLM final : CausalLM {
  explicit ForCausalLM(const Config& c);
  State begin(Run& run, const Inputs& inputs) override;
  Context context(Run& run, const at::Tensor& hidden_states, const Inputs& inputs) override;
  void layer(Run& run, State& state, int64_t index) override;
  at::Tensor end(Run& run, State& state) override;
  int64_t layers() const override { return static_cast<int64_t>(model.layers.size()); }
  const Mechanisms& mechanisms() const override { return mechanisms_; }
  at::Tensor inv_freq() const override { return model.rotary_emb.inv_freq; }

  TextModel model;
  Linear lm_head;

 private:
  Mechanisms mechanisms_;
};

ForCausalLM::ForCausalLM(const Config& c) : model(this, c), lm_head(this, "lm_head", c.hidden_size, c.vocab_size) {
  mechanisms_ = {
      .layer_types = c.layer_types,
      .vocab = c.vocab_size,
      .attention_heads = c.num_attention_heads,
      .key_value_heads = c.num_key_value_heads,
      .head_dim = c.head_dim,
      .rotary_dim = 2 * model.rotary_emb.inv_freq.size(0),
      .linear_key_heads = c.linear_num_key_heads,
      .linear_value_heads = c.linear_num_value_heads,
      .conv_kernel = c.linear_conv_kernel_dim,
      .mrope = true,
      .mrope_rows = c.rope.mrope_section[1] + c.rope.mrope_section[2] > 0 && model.rotary_emb.inv_freq.size(0) > 1,
      .output_gate = true};
}

CausalLM::State ForCausalLM::begin(Run& run, const Inputs& inputs) {
  check(inputs, run.cache);
  run.record(model, ".input", inputs.ids);
  State state;
  state.hidden_states = run(model.embed_tokens, inputs.ids);
  state.context = context(run, state.hidden_states, inputs);
  return state;
}

Context ForCausalLM::context(Run& run, const at::Tensor& hidden_states, const Inputs& inputs) {
  const auto B = inputs.ids.size(0), T = inputs.ids.size(1), past = run.cache ? run.cache->past : 0;
  // Text positions find packed sequences; three-row ones have none.
  at::Tensor rows = inputs.positions, text_positions;
  if (!rows.defined()) rows = (at::arange(T) + past).unsqueeze(0).expand({B, T});
  if (rows.dim() == 2) text_positions = rows, rows = rows.unsqueeze(0).expand({3, B, T});
  Context context;
  context.mask = causal_mask(run, B, T, past, inputs.mask, text_positions, hidden_states.scalar_type());
  context.recurrent_mask = recurrent_mask(run, T, past, inputs.mask);
  std::tie(context.cos, context.sin) = run(model.rotary_emb, hidden_states, rows);
  return context;
}

void ForCausalLM::layer(Run& run, State& state, int64_t index) {
  state.hidden_states = run(*model.layers[index], state.hidden_states, state.context);
}

at::Tensor ForCausalLM::end(Run& run, State& state) {
  if (run.cache) run.cache->past += state.hidden_states.size(1);
  const auto hidden_states = run(model.norm, state.hidden_states);
  run.record(model, ".output", hidden_states);
  return run(lm_head, kept_positions(run, hidden_states));
}

}  // namespace

std::unique_ptr<CausalLM> make_qwen3_5(ConfigReader& reader, bool* tie) {
  const auto config = Config::read(reader);
  *tie = reader.find<bool>("tie_word_embeddings").value_or(false);
  return std::make_unique<ForCausalLM>(config);
}

}  // namespace lockstep
