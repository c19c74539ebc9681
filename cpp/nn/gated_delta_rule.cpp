#include "nn/gated_delta_rule.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace lockstep {

using at::indexing::Ellipsis;
using at::indexing::None;
using at::indexing::Slice;

namespace {

constexpr int64_t kChunk = kDeltaRuleChunk;

/// Everything upcast and head-major ([B, Hv, T, ...]), q and k normalised. The two releases normalise on different
/// sides of the upcast, which is another rounding in bfloat16 and float16.
struct Prepared {
  at::Tensor query, key, value, beta, decay;
};

Prepared prepare(Run& run, const Module& module, const DeltaRuleInputs& in) {
  auto query = in.query, key = in.key;
  if (run.variant.delta_rule_by_rows) {
    query = run.capture(module, "q_l2", run.arithmetic.l2norm(module, query));
    key = run.capture(module, "k_l2", run.arithmetic.l2norm(module, key));
  }
  auto head_major = [&](const at::Tensor& x) {
    const auto t = x.transpose(1, 2);
    return run.variant.delta_rule_by_rows ? t.contiguous().to(run.arithmetic.up)
                                          : t.to(run.arithmetic.up, false, false, at::MemoryFormat::Contiguous);
  };
  Prepared p{head_major(query), head_major(key), head_major(in.value), head_major(in.beta), head_major(in.decay)};
  // Index order: normalised in the run's dtype, as 5.10 and simple engines do, in the present release's layout.
  if (run.arithmetic.order == Order::index && !run.variant.delta_rule_by_rows) {
    p.query = run.capture(module, "q_l2", head_major(run.arithmetic.l2norm(module, query)));
    p.key = run.capture(module, "k_l2", head_major(run.arithmetic.l2norm(module, key)));
  } else if (!run.variant.delta_rule_by_rows) {
    p.query = run.capture(module, "q_l2", run.arithmetic.l2norm(module, p.query));
    p.key = run.capture(module, "k_l2", run.arithmetic.l2norm(module, p.key));
  }
  return p;
}

at::Tensor first_state(const DeltaRuleInputs& in, const at::Tensor& like) {
  if (in.initial_state.defined()) return in.initial_state.to(like.options());
  return at::zeros({in.value.size(0), in.value.size(2), in.key.size(3), in.value.size(3)}, like.options());
}

at::Tensor pad_tokens(const at::Tensor& x, int64_t pad) {
  return x.dim() == 4 ? at::pad(x, {0, 0, 0, pad}) : at::pad(x, {0, pad});
}

at::Tensor chunked(const at::Tensor& x) {  // [B, H, T, ...] -> [B, H, N, C, ...]
  if (x.dim() == 3) return x.reshape({x.size(0), x.size(1), -1, kChunk});
  return x.reshape({x.size(0), x.size(1), -1, kChunk, x.size(-1)});
}

at::Tensor nth(const at::Tensor& x, int64_t i) { return x.select(2, i); }

/// [B, H, N, C, Dv] -> [B, T, H, Dv], the padding dropped.
at::Tensor token_major(const at::Tensor& out, int64_t tokens) {
  return out.reshape({out.size(0), out.size(1), -1, out.size(-1)}).slice(2, 0, tokens).transpose(1, 2);
}

/// 5.18: triangular solves for u and w, decay applied before the scan.
DeltaRuleOutputs chunk_by_solve(Run& run, const Module& module, const DeltaRuleInputs& in) {
  const auto tokens = in.key.size(1);
  auto [query, key, value, beta, decay] = prepare(run, module, in);
  query = query * run.arithmetic.number(module, "delta_scale", std::pow(double(query.size(-1)), -0.5));

  const int64_t pad = (kChunk - tokens % kChunk) % kChunk;
  query = pad_tokens(query, pad), key = pad_tokens(key, pad), value = pad_tokens(value, pad);
  beta = pad_tokens(beta, pad), decay = pad_tokens(decay, pad);
  const int64_t chunks = (tokens + pad) / kChunk;

  auto v_beta = value * beta.unsqueeze(-1);
  auto k_beta = key * beta.unsqueeze(-1);
  query = chunked(query), key = chunked(key), k_beta = chunked(k_beta), v_beta = chunked(v_beta);
  decay = chunked(decay);

  const auto upper = at::ones({kChunk, kChunk}, at::kBool).triu(1);
  const auto cum_decay = decay.cumsum(3);  // [B, H, N, C]
  auto pairwise = cum_decay.unsqueeze(4) - cum_decay.unsqueeze(3);
  pairwise = pairwise.masked_fill(upper, -std::numeric_limits<double>::infinity()).exp();

  const auto key_t = key.transpose(-1, -2);
  const auto system = at::matmul(k_beta, key_t) * pairwise;
  const auto intra = at::matmul(query, key_t) * pairwise;
  const auto decayed_k_beta = run.arithmetic.decayed_keys(module, k_beta, cum_decay);
  const auto u = at::linalg_solve_triangular(system, v_beta, /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
  const auto w = at::linalg_solve_triangular(system, decayed_k_beta, false, true, true);

  auto state = first_state(in, u);
  auto out = at::zeros_like(u);
  query = query * cum_decay.exp().unsqueeze(-1);
  key = key * (cum_decay.index({Ellipsis, Slice(-1, None)}) - cum_decay).exp().unsqueeze(-1);
  const auto chunk_decay = cum_decay.select(-1, -1).exp().unsqueeze(-1).unsqueeze(-1);

  for (int64_t i = 0; i < chunks; ++i) {
    const auto v_new = nth(u, i) - at::matmul(nth(w, i), state);
    const auto inter = at::matmul(nth(query, i), state);
    nth(out, i).copy_(inter + at::matmul(nth(intra, i), v_new));
    state = state * nth(chunk_decay, i) + at::matmul(nth(key, i).transpose(-1, -2), v_new);
  }
  auto output = token_major(out, tokens).to(in.query.scalar_type(), false, false, at::MemoryFormat::Contiguous);
  return {output, state};
}

/// 5.10: the inverse of (I - A) row by row, decay inside the scan.
DeltaRuleOutputs chunk_by_rows(Run& run, const Module& module, const DeltaRuleInputs& in) {
  const auto tokens = in.key.size(1);
  auto [query, key, value, beta, g] = prepare(run, module, in);

  const int64_t pad = (kChunk - tokens % kChunk) % kChunk;
  query = pad_tokens(query, pad), key = pad_tokens(key, pad), value = pad_tokens(value, pad);
  beta = pad_tokens(beta, pad), g = pad_tokens(g, pad);
  const int64_t chunks = (tokens + pad) / kChunk;
  query = query * run.arithmetic.number(module, "delta_scale", 1 / std::pow(double(query.size(-1)), 0.5));

  auto v_beta = value * beta.unsqueeze(-1);
  auto k_beta = key * beta.unsqueeze(-1);
  query = chunked(query), key = chunked(key), k_beta = chunked(k_beta), v_beta = chunked(v_beta);
  g = chunked(g);

  const auto diagonal_up = at::ones({kChunk, kChunk}, at::kBool).triu(0);
  g = g.cumsum(-1);
  const auto decay_mask = run.upcast((g.unsqueeze(-1) - g.unsqueeze(-2)).tril().exp()).tril();
  auto attn = -(at::matmul(k_beta, key.transpose(-1, -2)) * decay_mask).masked_fill(diagonal_up, 0);
  for (int64_t i = 1; i < kChunk; ++i) {
    const auto row = attn.index({Ellipsis, i, Slice(None, i)}).clone();
    const auto sub = attn.index({Ellipsis, Slice(None, i), Slice(None, i)}).clone();
    attn.index({Ellipsis, i, Slice(None, i)}).copy_(row + (row.unsqueeze(-1) * sub).sum(-2));
  }
  attn = attn + at::eye(kChunk, attn.options());
  const auto u = at::matmul(attn, v_beta);
  const auto w = at::matmul(attn, run.arithmetic.decayed_keys(module, k_beta, g));

  auto state = first_state(in, u);
  auto out = at::zeros_like(u);
  for (int64_t i = 0; i < chunks; ++i) {
    const auto q_i = nth(query, i), k_i = nth(key, i), g_i = nth(g, i);
    const auto intra = at::matmul(q_i, k_i.transpose(-1, -2)) * nth(decay_mask, i);
    const auto v_prime = at::matmul(nth(w, i), state);
    const auto v_new = nth(u, i) - v_prime;
    const auto inter = at::matmul(q_i * g_i.unsqueeze(-1).exp(), state);
    nth(out, i).copy_(inter + at::matmul(intra, v_new));
    const auto last = g_i.select(-1, -1);
    const auto decayed = state * last.unsqueeze(-1).unsqueeze(-1).exp();
    const auto k_decayed = k_i * (last.unsqueeze(-1) - g_i).exp().unsqueeze(-1);
    state = decayed + at::matmul(k_decayed.transpose(-1, -2), v_new);
  }
  auto output = token_major(out, tokens).contiguous().to(in.query.scalar_type());
  return {output, state};
}

/// The recurrence number by number, for the truth: the same formula as the loop over tensors below (a test compares).
/// All [B, Hv, T, ...] float64; state and out are written.
void plain_loop(const at::Tensor& query_in, const at::Tensor& key_in, const at::Tensor& value_in,
                const at::Tensor& beta_in, const at::Tensor& decay_in, at::Tensor& state, at::Tensor& out) {
  const auto query = query_in.contiguous(), key = key_in.contiguous(), value = value_in.contiguous();
  const auto beta = beta_in.contiguous(), decay = decay_in.contiguous();
  const auto T = value.size(2), Dk = key.size(3), Dv = value.size(3);
  const auto *q = query.const_data_ptr<double>(), *k = key.const_data_ptr<double>(),
             *v = value.const_data_ptr<double>();
  const auto *b = beta.const_data_ptr<double>(), *g = decay.const_data_ptr<double>();
  auto* S = state.mutable_data_ptr<double>();
  auto* o = out.mutable_data_ptr<double>();
  at::parallel_for(0, value.size(0) * value.size(1), 1, [&](int64_t begin, int64_t end) {
    std::vector<double> memory(static_cast<size_t>(Dv));
    for (int64_t head = begin; head < end; ++head) {
      double* s = S + head * Dk * Dv;
      for (int64_t t = head * T; t < (head + 1) * T; ++t) {
        const double keep = std::exp(g[t]);
        std::fill(memory.begin(), memory.end(), 0.0);
        for (int64_t i = 0; i < Dk; ++i) {
          for (int64_t j = 0; j < Dv; ++j) s[i * Dv + j] *= keep, memory[j] += s[i * Dv + j] * k[t * Dk + i];
        }
        for (int64_t j = 0; j < Dv; ++j) memory[j] = (v[t * Dv + j] - memory[j]) * b[t];  // what the token writes
        double* row = o + t * Dv;
        for (int64_t i = 0; i < Dk; ++i) {
          for (int64_t j = 0; j < Dv; ++j) {
            s[i * Dv + j] += k[t * Dk + i] * memory[j];
            row[j] += s[i * Dv + j] * q[t * Dk + i];
          }
        }
      }
    }
  });
}

/// One token, all float32: query and key [B, Hv, Dk], value [B, Hv, Dv], beta and decay [B, Hv], state [B, Hv, Dk, Dv],
/// which is replaced; returns [B, Hv, Dv]. In the bits of the loop over tensors below: each product and sum is rounded
/// by itself as there, and those over Dk are torch's own. But the state is gone through twice, not seven times, which
/// is most of what a step costs beside its weights.
at::Tensor step_by_rows(const Run& run, const Module& module, const at::Tensor& query, const at::Tensor& key,
                        const at::Tensor& value, const at::Tensor& beta, const at::Tensor& decay, at::Tensor& state) {
  const auto Dk = state.size(2), Dv = state.size(3), rows = state.numel() / Dv;
  const auto old = state;
  auto next = at::empty(old.sizes(), old.options()), product = at::empty(old.sizes(), old.options());
  const auto q_in = query.contiguous(), k_in = key.contiguous(), keep_in = decay.exp().contiguous();
  const auto *q = q_in.const_data_ptr<float>(), *k = k_in.const_data_ptr<float>(),
             *keep = keep_in.const_data_ptr<float>(), *S = old.const_data_ptr<float>();
  auto *n = next.mutable_data_ptr<float>(), *p = product.mutable_data_ptr<float>();
  const auto each_row = [&](auto work) {
    constexpr int64_t kElements = 32768;  // that are worth a thread
    at::parallel_for(0, rows, std::max<int64_t>(1, kElements / Dv), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) work(row, row / Dk, row * Dv);
    });
  };
  each_row([&](int64_t row, int64_t head, int64_t at) {
    for (int64_t j = at; j < at + Dv; ++j) n[j] = S[j] * keep[head], p[j] = n[j] * k[row];
  });
  const auto write = run.arithmetic.delta(module, value, product.sum(-2), beta).contiguous();
  const auto* d = write.const_data_ptr<float>();
  each_row([&](int64_t row, int64_t head, int64_t at) {
    const float* to_write = d + head * Dv;
    for (int64_t j = 0; j < Dv; ++j) n[at + j] += k[row] * to_write[j], p[at + j] = n[at + j] * q[row];
  });
  state = next;
  return product.sum(-2);
}

}  // namespace

DeltaRuleOutputs chunk_gated_delta_rule(Run& run, const Module& module, const DeltaRuleInputs& in) {
  if (run.arithmetic.recurrent(module)) return recurrent_gated_delta_rule(run, module, in);
  return run.variant.delta_rule_by_rows ? chunk_by_rows(run, module, in) : chunk_by_solve(run, module, in);
}

DeltaRuleOutputs recurrent_gated_delta_rule(Run& run, const Module& module, const DeltaRuleInputs& in) {
  auto [query, key, value, beta, decay] = prepare(run, module, in);
  const double root = std::pow(double(query.size(-1)), 0.5);
  const double scale = run.arithmetic.number(module, "delta_scale", 1 / root);
  const bool divides = run.arithmetic.order == Order::hf && !run.variant.delta_rule_by_rows && scale == 1 / root;
  query = divides ? query / root : query * scale;

  auto state = first_state(in, value);
  auto out = at::zeros_like(value);
  const bool plain = run.arithmetic.plain_steps();
  if (plain && run.arithmetic.order == Order::plain && run.arithmetic.up == at::kDouble) {
    state = state.clone(at::MemoryFormat::Contiguous), out = at::zeros(value.sizes(), value.options());
    plain_loop(query, key, value, beta, decay, state, out);
    return {out.transpose(1, 2).contiguous().to(in.query.scalar_type()), state};
  }
  // Who listens to the operations is to hear Hugging Face's.
  const bool by_rows = plain && run.arithmetic.order == Order::hf && run.arithmetic.up == at::kFloat &&
                       state.is_contiguous() && !c10::impl::TorchDispatchModeTLS::any_modes_set();
  for (int64_t t = 0; t < value.size(2); ++t) {
    const auto q_t = query.select(2, t), k_t = key.select(2, t), v_t = value.select(2, t);
    if (by_rows) {
      out.select(2, t).copy_(step_by_rows(run, module, q_t, k_t, v_t, beta.select(2, t), decay.select(2, t), state));
      continue;
    }
    state = run.arithmetic.decay_state(module, state, decay.select(2, t));
    const auto kv_mem = run.arithmetic.sum(state * k_t.unsqueeze(-1), -2);
    const auto delta = run.arithmetic.delta(module, v_t, kv_mem, beta.select(2, t));
    state = state + k_t.unsqueeze(-1) * delta.unsqueeze(-2);
    out.select(2, t).copy_(run.arithmetic.sum(state * q_t.unsqueeze(-1), -2));
  }
  return {out.transpose(1, 2).contiguous().to(in.query.scalar_type()), state};
}

}  // namespace lockstep
