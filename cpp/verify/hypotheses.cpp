#include "verify/hypotheses.h"

#include <ATen/TensorIndexing.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace lockstep {

using at::indexing::Ellipsis;
using at::indexing::None;
using at::indexing::Slice;

bool Hypothesis::applies(Kind kind) const { return std::find(kinds.begin(), kinds.end(), kind) != kinds.end(); }

namespace {

using A = Arithmetic;
using M = Module;
using T = at::Tensor;

T through(const T& x, at::ScalarType dtype) { return x.to(dtype).to(x.scalar_type()); }

Hypothesis formula(std::string name, std::vector<Kind> kinds, std::function<void(Change&)> fill) {
  return {std::move(name),
          FaultClass::formula,
          std::move(kinds),
          [fill = std::move(fill)] {
            Change c;
            fill(c);
            return c;
          },
          "",
          {}};
}

Hypothesis precision(std::string name, std::vector<Kind> kinds, std::function<void(Change&)> fill) {
  auto h = formula(std::move(name), std::move(kinds), std::move(fill));
  h.fault_class = FaultClass::precision;
  return h;
}

/// A number that is fitted from `first_try` on.
Hypothesis number(std::string name, std::vector<Kind> kinds, std::string parameter, std::string number,
                  std::string module, std::function<double(double)> first_try) {
  auto h = formula(
      std::move(name), std::move(kinds),
      [number = std::move(number), module = std::move(module)](Change& c) { c.number = number, c.module = module; });
  h.parameter = std::move(parameter), h.first_try = std::move(first_try);
  return h;
}

/// A number that engines take when they do not find the config's.
Hypothesis known_value(std::string name, std::vector<Kind> kinds, std::string parameter, std::string key,
                       double value) {
  auto h = number(std::move(name), std::move(kinds), std::move(parameter), std::move(key), "",
                  [value](double) { return value; });
  h.fixed = true;
  return h;
}

T* find(Tensors& tensors, const std::string& end) {
  for (auto& [name, value] : tensors) {
    if (name.ends_with(end)) return &value;
  }
  return nullptr;
}

std::function<void(Change&)> all_weights(std::function<T(const T&)> edit) {
  return [edit = std::move(edit)](Change& c) {
    c.weights = [edit](Tensors& tensors) {
      for (auto& [_, value] : tensors) value = edit(value);
    };
  };
}

std::function<void(Change&)> one_weight(std::string end, std::function<T(const T&)> edit) {
  return [end = std::move(end), edit = std::move(edit)](Change& c) {
    c.weights = [end, edit](Tensors& tensors) {
      if (auto* value = find(tensors, end)) *value = edit(*value);
    };
  };
}

std::function<void(Change&)> exchanged(std::string first, std::string second) {
  return [=](Change& c) {
    c.weights = [=](Tensors& tensors) {
      auto *a = find(tensors, first), *b = find(tensors, second);
      if (a && b && a->sizes() == b->sizes()) std::swap(*a, *b);
    };
  };
}

/// w where 1 + w is meant, and the other way round.
T other_convention(const A& a, const M&, const T& w, bool zero_centred) {
  return zero_centred ? a.upcast(w) : a.upcast(w) + 1.0;
}

T centred(const A& a, const M& at, const T& x, double eps) {
  return a.Arithmetic::rms_normalized(at, x - x.mean(-1, /*keepdim=*/true), eps);
}

T tiled(const M&, const T& x, int64_t times, int64_t dim) {
  std::vector<int64_t> repeats(static_cast<size_t>(x.dim()), 1);
  repeats[static_cast<size_t>(dim)] = times;
  return x.repeat(repeats);
}

Change::Pair flat_split(const M&, const T& x, int64_t head_dim) {
  const auto halves = x.chunk(2, -1);
  auto heads = [&](const T& y) { return y.reshape({x.size(0), x.size(1), -1, head_dim}); };
  return {heads(halves[0]), heads(halves[1])};
}

T rotated_pairs(const T& x) {  // (x0, x1, x2, x3) -> (-x1, x0, -x3, x2)
  return at::stack({-x.index({Ellipsis, Slice(1, None, 2)}), x.index({Ellipsis, Slice(None, None, 2)})}, -1)
      .flatten(-2);
}

T rotate_interleaved(const M&, const T& x, const T& cos_in, const T& sin_in) {
  const auto R = cos_in.size(-1);
  auto pairs = [&](const T& table) { return table.slice(-1, 0, R / 2).repeat_interleave(2, -1); };
  const auto rot = x.slice(-1, 0, R), pass = x.slice(-1, R);
  return at::cat({rot * pairs(cos_in) + rotated_pairs(rot) * pairs(sin_in), pass}, -1);
}

T rotate_backwards(const M& at, const T& x, const T& cos, const T& sin) {
  return hf_arithmetic().rotate(at, x, cos, -sin, /*partial=*/true);
}

T positions_from_zero(const A&, const M&, const T& positions) {
  return at::arange(positions.size(-1)).expand_as(positions);
}

T through_bfloat16(const A&, const M&, const T& x) { return through(x, at::kBFloat16); }

T zero_state(const A&, const M&, const T& state) { return state.defined() ? at::zeros_like(state) : state; }

T transposed_state(const A&, const M&, const T& state) {
  return state.size(-1) == state.size(-2) ? state.transpose(-1, -2).contiguous() : state;
}

std::vector<Hypothesis> make() {
  using enum Kind;
  const std::vector<Kind> mixers = {linear_attn, self_attn};
  const std::vector<Kind> tables = {rotary, self_attn};  // self_attn where the candidate shows no cos and sin
  const std::vector<Kind> linear = {linear_attn, self_attn, mlp, head};
  auto ten_times = [](double config) { return config * 10; };
  auto a_little_more = [](double config) { return config * 1.001; };

  std::vector<Hypothesis> list = {
      // Norms.
      number("norm epsilon", {norm}, "rms_norm_eps", "eps", "", ten_times),
      formula("norm weight convention", {norm}, [](Change& c) { c.norm_scale = other_convention; }),
      formula("norm without its weight", {norm},
              [](Change& c) {
                c.norm_scale = [](const A& a, const M&, const T& w, bool) { return a.upcast(at::ones_like(w)); };
              }),
      formula("norm subtracts the mean", {norm}, [](Change& c) { c.rms_normalized = centred; }),
      formula("norm left out", {norm},
              [](Change& c) { c.rms_normalized = [](const A&, const M&, const T& x, double) { return x; }; }),
      formula("norm by the sum of squares", {norm},
              [](Change& c) {
                c.rms_normalized = [](const A&, const M&, const T& x, double eps) {
                  return x * at::rsqrt(x.pow(2).sum(-1, true) + eps);
                };
              }),
  };
  for (const std::string which : {"q_norm", "k_norm"}) {
    list.push_back(number(which + " epsilon", {self_attn}, "rms_norm_eps", "eps", which, ten_times));
    list.push_back(formula(which + " weight convention", {self_attn},
                           [which](Change& c) { c.module = which, c.norm_scale = other_convention; }));
    list.push_back(formula(which + " left out", {self_attn}, [which](Change& c) {
      c.module = which;
      c.rms_normalized = [](const A&, const M&, const T& x, double) { return x; };
      c.norm_scale = [](const A& a, const M&, const T& w, bool) { return a.upcast(at::ones_like(w)); };
    }));
  }
  const std::vector<Hypothesis> more = {
      number("gated norm epsilon", {linear_attn}, "rms_norm_eps", "eps", ".norm", ten_times),
      formula("gated norm weight convention", {linear_attn},
              [](Change& c) { c.module = ".norm", c.norm_scale = other_convention; }),
      formula("gated norm gates by sigmoid", {linear_attn},
              [](Change& c) {
                c.gated_norm = [](const A& a, const M&, const T& h, const T& z) {
                  return h * at::sigmoid(a.upcast(z));
                };
              }),
      formula("gated norm without its gate", {linear_attn},
              [](Change& c) { c.gated_norm = [](const A&, const M&, const T& h, const T&) { return h; }; }),

      // MLP.
      formula("gelu for silu", {mlp},
              [](Change& c) { c.silu = [](const A&, const M&, const T& x) { return at::gelu(x); }; }),
      formula("tanh gelu for silu", {mlp},
              [](Change& c) { c.silu = [](const A&, const M&, const T& x) { return at::gelu(x, "tanh"); }; }),
      formula("relu for silu", {mlp},
              [](Change& c) { c.silu = [](const A&, const M&, const T& x) { return at::relu(x); }; }),
      formula("sigmoid for silu", {mlp},
              [](Change& c) { c.silu = [](const A&, const M&, const T& x) { return at::sigmoid(x); }; }),
      formula("activation left out", {mlp},
              [](Change& c) { c.silu = [](const A&, const M&, const T& x) { return x; }; }),
      formula("gate and up exchanged", {mlp}, exchanged("gate_proj.weight", "up_proj.weight")),

      // Full attention.
      number("attention scale", {self_attn}, "scaling", "scale", "", a_little_more),
      formula("attention scale left out", {self_attn}, [](Change& c) { c.number = "scale", c.value = 1.0; }),
      formula("key heads tiled", {self_attn, linear_attn}, [](Change& c) { c.repeat_heads = tiled; }),
      formula("key and value exchanged", {self_attn}, exchanged("k_proj.weight", "v_proj.weight")),
      formula("flat q/gate split", {self_attn}, [](Change& c) { c.split_pair = flat_split; }),
      formula("query and gate exchanged", {self_attn},
              [](Change& c) {
                c.split_pair = [](const M& at, const T& x, int64_t head_dim) {
                  auto pair = hf_arithmetic().split_pair(at, x, head_dim);
                  return Change::Pair{pair.second, pair.first};
                };
              }),
      formula("output gate by silu", {self_attn},
              [](Change& c) { c.gate = [](const A&, const M&, const T& x, const T& g) { return x * at::silu(g); }; }),
      formula("output gate left out", {self_attn},
              [](Change& c) { c.gate = [](const A&, const M&, const T& x, const T&) { return x; }; }),
      formula("rotation of interleaved pairs", {self_attn}, [](Change& c) { c.rotate = rotate_interleaved; }),
      formula("rotation backwards", {self_attn}, [](Change& c) { c.rotate = rotate_backwards; }),
      formula("rotation left out", {self_attn},
              [](Change& c) { c.rotate = [](const M&, const T& x, const T&, const T&) { return x; }; }),
      formula("causal mask left out", {self_attn},
              [](Change& c) { c.visible = [](const A&, const M&, const T& mask) { return at::ones_like(mask); }; }),
      formula("causal mask shows the next token", {self_attn},
              [](Change& c) {
                c.visible = [](const A&, const M&, const T& mask) {
                  const auto ahead =
                      at::ones({mask.size(-2), mask.size(-1)}, at::kBool).tril(mask.size(-1) - mask.size(-2) + 1);
                  return mask | ahead.expand_as(mask);
                };
              }),
      formula("causal mask hides the token itself", {self_attn},
              [](Change& c) {
                c.visible = [](const A&, const M&, const T& mask) {
                  const auto behind =
                      at::ones({mask.size(-2), mask.size(-1)}, at::kBool).tril(mask.size(-1) - mask.size(-2) - 1);
                  return mask & behind.expand_as(mask);
                };
              }),
      formula("attention pads not masked", {self_attn},
              [](Change& c) {
                c.visible = [](const A&, const M&, const T& mask) {
                  return at::ones({mask.size(-2), mask.size(-1)}, at::kBool)
                      .tril(mask.size(-1) - mask.size(-2))
                      .expand_as(mask);
                };
              }),
      formula("cached keys not seen", {self_attn},
              [](Change& c) {
                c.visible = [](const A&, const M&, const T& mask) {
                  auto seen = mask.clone();
                  seen.slice(-1, 0, mask.size(-1) - mask.size(-2)).fill_(false);
                  return seen;
                };
              }),

      // Rotary tables.
      known_value("rope theta 10000", tables, "rope_theta", "theta", 1e4),
      known_value("rope theta 500000", tables, "rope_theta", "theta", 5e5),
      known_value("rope theta 1000000", tables, "rope_theta", "theta", 1e6),
      number("rope theta", tables, "rope_theta", "theta", "", a_little_more),
      formula("positions one too high", tables,
              [](Change& c) { c.positions = [](const A&, const M&, const T& x) { return x + 1; }; }),
      formula("positions from 0", tables, [](Change& c) { c.positions = positions_from_zero; }),
      formula("three-row positions by the first row", tables,
              [](Change& c) {
                c.positions = [](const A&, const M&, const T& x) {
                  return x.dim() == 3 ? x.slice(0, 0, 1).expand_as(x) : x;
                };
              }),
      formula("cos and sin exchanged", tables,
              [](Change& c) { c.tables = [](const T& cos, const T& sin) {
                                return Change::Pair{sin, cos};
                              }; }),
      formula("inv_freq halved", tables,
              [](Change& c) { c.inv_freq = [](const A&, const M&, const T& x) { return x / 2; }; }),

      // Gated delta rule.
      number("delta rule scale", {linear_attn}, "scale", "delta_scale", "", a_little_more),
      formula("delta rule scale left out", {linear_attn}, [](Change& c) { c.number = "delta_scale", c.value = 1.0; }),
      number("l2norm epsilon", {linear_attn}, "l2norm epsilon", "l2_eps", "", ten_times),
      formula("l2norm by F.normalize", {linear_attn},
              [](Change& c) {
                c.l2norm = [](const A&, const M&, const T& x) {
                  return x / x.square().sum(-1, true).sqrt().clamp_min(1e-12);
                };
              }),
      formula("l2norm epsilon in a mean", {linear_attn},
              [](Change& c) {
                c.l2norm = [](const A&, const M&, const T& x) {
                  return x * at::rsqrt(x.square().mean(-1, true) + 1e-6) / std::sqrt(double(x.size(-1)));
                };
              }),
      formula("l2norm epsilon outside of the root", {linear_attn},
              [](Change& c) {
                c.l2norm = [](const A&, const M&, const T& x) { return x / (x.square().sum(-1, true).sqrt() + 1e-6); };
              }),
      formula("l2norm left out", {linear_attn},
              [](Change& c) { c.l2norm = [](const A&, const M&, const T& x) { return x; }; }),
      formula("decay without softplus", {linear_attn},
              [](Change& c) {
                c.decay = [](const A& a, const T& A_log, const T& x, const T& dt) {
                  return -a.upcast(A_log).exp() * (a.upcast(x) + dt);
                };
              }),
      formula("decay without dt_bias", {linear_attn},
              one_weight("dt_bias", [](const T& w) { return at::zeros_like(w); })),
      formula("decay by A_log itself", {linear_attn},
              [](Change& c) {
                c.decay = [](const A& a, const T& A_log, const T& x, const T& dt) {
                  return -a.upcast(A_log) * at::softplus(a.upcast(x) + dt);
                };
              }),
      formula("state not decayed", {linear_attn},
              [](Change& c) {
                c.decay = [](const A& a, const T&, const T& x, const T&) { return at::zeros_like(a.upcast(x)); };
              }),
      formula("beta left out", {linear_attn},
              [](Change& c) { c.beta = [](const A&, const M&, const T& b) { return at::ones_like(b); }; }),
      formula("beta without its sigmoid", {linear_attn},
              [](Change& c) { c.beta = [](const A&, const M&, const T& b) { return b; }; }),
      formula("memory not subtracted", {linear_attn},
              [](Change& c) {
                c.delta = [](const T& value, const T&, const T& beta) { return value * beta.unsqueeze(-1); };
              }),
      formula("chunk hand-over without decay", {linear_attn},
              [](Change& c) {
                c.by_chunks = true,
                c.decayed_keys = [](const A&, const M&, const T& k_beta, const T&) { return k_beta; };
              }),
      formula("convolution without silu", {linear_attn},
              [](Change& c) { c.silu = [](const A&, const M&, const T& x) { return x; }; }),
      formula("convolution taps reversed", {linear_attn},
              one_weight("conv1d.weight", [](const T& w) { return w.flip(-1); })),
      formula("linear pads not masked", {linear_attn},
              [](Change& c) { c.recurrent_mask = [](const A&, const M&, const T&) { return T(); }; }),
      formula("recurrent state not handed over", {linear_attn}, [](Change& c) { c.state_in = zero_state; }),
      formula("recurrent state handed over transposed", {linear_attn},
              [](Change& c) { c.state_in = transposed_state; }),
      formula("recurrent state left transposed", {linear_attn}, [](Change& c) { c.state_out = transposed_state; }),
      formula("conv state not handed over", {linear_attn},
              [](Change& c) {
                c.given = [](Given& g) {
                  if (g.past.conv_state.defined()) g.past.conv_state = at::zeros_like(g.past.conv_state);
                };
              }),
      formula("conv state one column short", {linear_attn},
              [](Change& c) {
                c.given = [](Given& g) {
                  if (!g.past.conv_state.defined()) return;
                  g.past.conv_state = g.past.conv_state.clone();
                  g.past.conv_state.slice(-1, 0, 2).zero_();
                };
              }),

      // Embedding, head, the layer's own sums.
      formula("embedding times sqrt(D)", {embedding},
              all_weights([](const T& w) { return w * std::sqrt(double(w.size(1))); })),
      formula("head divided by sqrt(D)", {head},
              all_weights([](const T& w) { return w / std::sqrt(double(w.size(1))); })),
      formula("residual left out", {layer},
              [](Change& c) { c.residual = [](const A&, const M&, const T&, const T& x) { return x; }; }),
      formula("sublayer left out of the stream", {layer},
              [](Change& c) { c.residual = [](const A&, const M&, const T& stream, const T&) { return stream; }; }),
      formula("stream halved", {layer},
              [](Change& c) {
                c.residual = [](const A&, const M&, const T& stream, const T& x) { return (stream + x) / 2; };
              }),
  };
  list.insert(list.end(), more.begin(), more.end());
  // Square weights stored the other way.
  for (const std::string which : {"q_proj", "k_proj", "v_proj", "o_proj", "in_proj_z", "out_proj", "down_proj"}) {
    list.push_back(formula(which + " transposed", linear, one_weight("." + which + ".weight", [](const T& w) {
                             return w.size(0) == w.size(1) ? w.t().contiguous() : w;
                           })));
  }

  // Another rounding of the same function.
  const std::vector<Hypothesis> roundings = {
      precision("weights through bfloat16", {embedding, norm, linear_attn, self_attn, mlp, head},
                all_weights([](const T& w) { return through(w, at::kBFloat16); })),
      precision("weights through float16", {embedding, norm, linear_attn, self_attn, mlp, head},
                all_weights([](const T& w) { return through(w, at::kHalf); })),
      precision("norm scale through bfloat16", {norm},
                [](Change& c) {
                  c.norm_scale = [](const A& a, const M&, const T& w, bool zero_centred) {
                    return through(zero_centred ? a.upcast(w) + 1.0 : w, at::kBFloat16);
                  };
                }),
      precision("A_log through bfloat16", {linear_attn},
                one_weight("A_log", [](const T& w) { return through(w, at::kBFloat16); })),
      precision("recurrent state through bfloat16", {linear_attn}, [](Change& c) { c.state_out = through_bfloat16; }),
      precision("decay through bfloat16", {linear_attn},
                [](Change& c) {
                  c.decay = [](const A& a, const T& A_log, const T& x, const T& dt) {
                    return through(-a.upcast(A_log).exp() * at::softplus(a.upcast(x) + dt), at::kBFloat16);
                  };
                }),
      precision("beta through bfloat16", {linear_attn},
                [](Change& c) {
                  c.beta = [](const A&, const M&, const T& b) { return through(b.sigmoid(), at::kBFloat16); };
                }),
      precision("inv_freq through bfloat16", tables, [](Change& c) { c.inv_freq = through_bfloat16; }),
      precision("cos and sin through bfloat16", tables,
                [](Change& c) {
                  c.tables = [](const T& cos, const T& sin) {
                    return Change::Pair{through(cos, at::kBFloat16), through(sin, at::kBFloat16)};
                  };
                }),
      precision("positions through bfloat16", tables,
                [](Change& c) {
                  c.positions = [](const A&, const M&, const T& x) { return x.to(at::kBFloat16).to(at::kDouble); };
                }),
      precision("stream through bfloat16", {layer},
                [](Change& c) {
                  c.residual = [](const A&, const M&, const T& stream, const T& x) {
                    return through(stream + x, at::kBFloat16);
                  };
                }),
  };
  list.insert(list.end(), roundings.begin(), roundings.end());
  return list;
}

}  // namespace

const std::vector<Hypothesis>& hypotheses() {
  static const std::vector<Hypothesis> list = make();
  return list;
}

const Hypothesis& hypothesis(const std::string& name) {
  for (const auto& h : hypotheses()) {
    if (h.name == name) return h;
  }
  throw InputError(fmt::format("hypothesis \"{}\" is not known", name));
}

}  // namespace lockstep
