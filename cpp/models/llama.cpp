// Llama. mirrors transformers 5.10 to 5.24, models/llama/modeling_llama.py
//   B batch, T tokens, D hidden_size, F intermediate_size, V vocab, H heads, G key/value heads, K head_dim
#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "models/registry.h"
#include "nn/attention.h"
#include "nn/layers.h"
#include "nn/masks.h"
#include "nn/rope.h"

namespace lockstep {

namespace {

struct Config {
  int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers;
  int64_t num_attention_heads, num_key_value_heads, head_dim;
  double rms_norm_eps;
  bool attention_bias, mlp_bias;
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
  // Two sizes that HF derives from others where the config has none.
  c.num_key_value_heads = r.has("num_key_value_heads") ? r.require_size("num_key_value_heads") : c.num_attention_heads;
  c.head_dim = r.has("head_dim") ? r.require_size("head_dim", 2, kLargestHead) : c.hidden_size / c.num_attention_heads;
  c.rms_norm_eps = r.require_positive("rms_norm_eps");
  c.attention_bias = r.find<bool>("attention_bias").value_or(false);
  c.mlp_bias = r.find<bool>("mlp_bias").value_or(false);
  if (c.hidden_size % c.num_attention_heads) {
    r.fail("num_attention_heads",
           fmt::format("expected a divisor of hidden_size {}, found {}", c.hidden_size, c.num_attention_heads));
  }
  if (c.num_attention_heads % c.num_key_value_heads) {
    r.fail("num_key_value_heads", fmt::format("expected a divisor of num_attention_heads {}, found {}",
                                              c.num_attention_heads, c.num_key_value_heads));
  }
  if (c.head_dim % 2 || c.head_dim > kLargestHead)
    r.fail("head_dim", fmt::format("expected an even number up to {}, found {}", kLargestHead, c.head_dim));
  c.rope = read_rope(r, /*multimodal=*/false, /*partial=*/1.0);
  if (c.rope.partial_rotary_factor != 1) {
    r.fail("partial_rotary_factor",
           fmt::format("{} is not implemented (implemented: 1)", c.rope.partial_rotary_factor));
  }
  r.expect("hidden_act", "silu");
  r.expect("layer_types", std::vector<std::string>(c.num_hidden_layers, "full_attention"));
  return c;
}

/// hidden_states [B, T, D] -> [B, T, D]. mirrors LlamaAttention
struct Attention : Module {
  Attention(Module* parent, const Config& c, int64_t layer_idx);
  at::Tensor forward(Run& run, const at::Tensor& hidden_states, const at::Tensor& cos, const at::Tensor& sin,
                     const at::Tensor& mask);
  at::Tensor apply(Run& run, const at::Tensor& hidden_states, const Context& context) override {
    return forward(run, hidden_states, context.cos, context.sin, context.mask);
  }

  const int64_t layer_idx, K;
  Linear q_proj, k_proj, v_proj, o_proj;
};

Attention::Attention(Module* parent, const Config& c, int64_t layer_idx)
    : Module(parent, "self_attn"),
      layer_idx(layer_idx),
      K(c.head_dim),
      q_proj(this, "q_proj", c.hidden_size, c.num_attention_heads * K, c.attention_bias),
      k_proj(this, "k_proj", c.hidden_size, c.num_key_value_heads * K, c.attention_bias),
      v_proj(this, "v_proj", c.hidden_size, c.num_key_value_heads * K, c.attention_bias),
      o_proj(this, "o_proj", c.num_attention_heads * K, c.hidden_size, c.attention_bias) {}

at::Tensor Attention::forward(Run& run, const at::Tensor& hidden_states, const at::Tensor& cos, const at::Tensor& sin,
                              const at::Tensor& mask) {
  const auto B = hidden_states.size(0), T = hidden_states.size(1);

  // 1. Project.
  auto query = run(q_proj, hidden_states).view({B, T, -1, K}).transpose(1, 2);  // [B, H, T, K]
  auto key = run(k_proj, hidden_states).view({B, T, -1, K}).transpose(1, 2);    // [B, G, T, K]
  auto value = run(v_proj, hidden_states).view({B, T, -1, K}).transpose(1, 2);

  // 2. RoPE.
  query = run.arithmetic.rotate(*this, query, cos.unsqueeze(1), sin.unsqueeze(1), /*partial=*/false);
  key = run.arithmetic.rotate(*this, key, cos.unsqueeze(1), sin.unsqueeze(1), /*partial=*/false);
  query = run.capture(*this, "q_rope", query);
  key = run.capture(*this, "k_rope", key);

  // 3. Cache.
  if (run.cache) {
    auto& cache = run.cache->layers[layer_idx];
    cache.append(key, value);
    key = cache.keys = run.capture(*this, "key_cache", cache.keys);
    value = cache.values = run.capture(*this, "value_cache", cache.values);
  }

  // 4. Attend and project.
  auto context = attention(run, *this, query, key, value, mask, std::pow(double(K), -0.5));  // [B, T, H, K]
  context = run.capture(*this, "context", context);
  return run(o_proj, context.reshape({B, T, -1}).contiguous());
}

/// hidden_states [B, T, D] -> [B, T, D]. mirrors LlamaDecoderLayer
struct DecoderLayer : Module {
  DecoderLayer(Module* parent, const Config& c, int64_t index)
      : Module(parent, std::to_string(index)),
        self_attn(this, c, index),
        mlp(this, "mlp", c.hidden_size, c.intermediate_size, c.mlp_bias),
        input_layernorm(this, "input_layernorm", c.hidden_size, c.rms_norm_eps),
        post_attention_layernorm(this, "post_attention_layernorm", c.hidden_size, c.rms_norm_eps) {}
  at::Tensor forward(Run& run, const at::Tensor& hidden_states, const Context& context);

  Attention self_attn;
  SwiGLU mlp;
  RMSNorm input_layernorm, post_attention_layernorm;
};

at::Tensor DecoderLayer::forward(Run& run, const at::Tensor& hidden_in, const Context& context) {
  auto residual = hidden_in;
  auto hidden_states = run(input_layernorm, hidden_in);
  hidden_states = run(self_attn, hidden_states, context.cos, context.sin, context.mask);
  hidden_states = run.arithmetic.residual(*this, residual, hidden_states);

  residual = hidden_states;
  hidden_states = run(post_attention_layernorm, hidden_states);
  hidden_states = run(mlp, hidden_states);
  return run.arithmetic.residual(*this, residual, hidden_states);
}

/// x [B, T, D] and positions [B, T] -> cos, sin [B, T, K]. mirrors LlamaRotaryEmbedding
struct RotaryEmbedding : Module {
  RotaryEmbedding(Module* parent, const Config& c)
      : Module(parent, "rotary_emb"),
        inv_freq(inverse_frequencies(c.rope, c.head_dim)),
        rope(c.rope),
        head_dim(c.head_dim) {}
  std::tuple<at::Tensor, at::Tensor> forward(Run& run, const at::Tensor& x, const at::Tensor& positions);

  const at::Tensor inv_freq;  // [K / 2] float32, in no file
  const RopeConfig rope;
  const int64_t head_dim;

 private:
  at::Tensor by_formula(const Run& run) const;
};

/// inv_freq; for the truth in float64, and under a hypothesis with its theta.
at::Tensor RotaryEmbedding::by_formula(const Run& run) const {
  auto changed = rope;
  changed.theta = run.arithmetic.number(*this, "theta", rope.theta);
  if (run.arithmetic.up == at::kDouble) return inverse_frequencies(changed, head_dim, at::kDouble);
  return changed.theta == rope.theta ? inv_freq : inverse_frequencies(changed, head_dim);
}

std::tuple<at::Tensor, at::Tensor> RotaryEmbedding::forward(Run& run, const at::Tensor& x,
                                                            const at::Tensor& positions_in) {
  const auto frequencies = run.capture(*this, "inv_freq", run.arithmetic.inv_freq(*this, by_formula(run)));
  const auto positions = run.arithmetic.positions(*this, positions_in);
  const auto freqs_in = run.upcast(frequencies).view({1, -1, 1}).expand({positions.size(0), -1, 1});
  const auto steps = run.upcast(positions.unsqueeze(1));           // [B, 1, T]
  const auto freqs = at::matmul(freqs_in, steps).transpose(1, 2);  // [B, T, K / 2]
  const auto emb = at::cat({freqs, freqs}, -1);
  const auto cos_table = emb.cos().to(x.scalar_type());
  const auto sin_table = emb.sin().to(x.scalar_type());
  auto [cos, sin] = run.arithmetic.tables(*this, cos_table, sin_table);
  cos = run.capture(*this, "cos", cos);
  sin = run.capture(*this, "sin", sin);
  return {cos, sin};
}

/// mirrors LlamaModel
struct Model : Module {
  Model(Module* parent, const Config& c)
      : Module(parent, "model"),
        embed_tokens(this, "embed_tokens", c.vocab_size, c.hidden_size),
        layer_list(this, "layers"),
        norm(this, "norm", c.hidden_size, c.rms_norm_eps),
        rotary_emb(this, c) {
    for (int64_t i = 0; i < c.num_hidden_layers; ++i)
      layers.push_back(std::make_unique<DecoderLayer>(&layer_list, c, i));
  }

  Embedding embed_tokens;
  Module layer_list;  // HF's ModuleList: a name, no forward
  std::vector<std::unique_ptr<DecoderLayer>> layers;
  RMSNorm norm;
  RotaryEmbedding rotary_emb;
};

/// mirrors LlamaForCausalLM
struct ForCausalLM final : CausalLM {
  explicit ForCausalLM(const Config& c);
  State begin(Run& run, const Inputs& inputs) override;
  Context context(Run& run, const at::Tensor& hidden_states, const Inputs& inputs) override;
  void layer(Run& run, State& state, int64_t index) override;
  at::Tensor end(Run& run, State& state) override;
  int64_t layers() const override { return static_cast<int64_t>(model.layers.size()); }
  const Mechanisms& mechanisms() const override { return mechanisms_; }
  at::Tensor inv_freq() const override { return model.rotary_emb.inv_freq; }

  Model model;
  Linear lm_head;

 private:
  Mechanisms mechanisms_;
};

ForCausalLM::ForCausalLM(const Config& c) : model(this, c), lm_head(this, "lm_head", c.hidden_size, c.vocab_size) {
  mechanisms_ = {.layer_types = std::vector<std::string>(c.num_hidden_layers, "full_attention"),
                 .vocab = c.vocab_size,
                 .attention_heads = c.num_attention_heads,
                 .key_value_heads = c.num_key_value_heads,
                 .head_dim = c.head_dim,
                 .rotary_dim = c.head_dim};
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
  const auto positions = inputs.positions.defined() ? inputs.positions : (at::arange(T) + past).unsqueeze(0);
  Context context;
  context.mask = causal_mask(run, B, T, past, inputs.mask, positions, hidden_states.scalar_type());
  std::tie(context.cos, context.sin) = run(model.rotary_emb, hidden_states, positions);
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

std::unique_ptr<CausalLM> make_llama(ConfigReader& reader, bool* tie) {
  const auto config = Config::read(reader);
  *tie = reader.find<bool>("tie_word_embeddings").value_or(false);
  return std::make_unique<ForCausalLM>(config);
}

}  // namespace lockstep
