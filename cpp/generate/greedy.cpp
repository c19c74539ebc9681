#include "generate/greedy.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/error.h"
#include "core/tensor_text.h"

namespace lockstep {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Zeros, then ones, in every row, at least one of them.
void check_left_padding(const at::Tensor& mask) {
  const bool falls = (mask.slice(1, 1) < mask.slice(1, 0, -1)).any().item<bool>();
  if (falls || (mask.select(1, -1) != 1).any().item<bool>())
    throw InputError("mask: expected left padding, zeros and then ones in every row");
}

}  // namespace

Decoding::Decoding(CausalLM& model, const Variant& variant, Attn attn, const Arithmetic& arithmetic,
                   std::function<void()> between)
    : model_(model),
      variant_(variant),
      attn_(attn),
      arithmetic_(arithmetic),
      between_(std::move(between)),
      cache_(model.new_cache()) {}

at::Tensor Decoding::forward(const at::Tensor& ids) {
  at::NoGradGuard no_grad;
  Run run(variant_, attn_, Level::layer, nullptr, &cache_, arithmetic_);
  run.logits_to_keep = 1;
  const bool long_one = ids.size(1) > 1;  // a step is over soon
  const auto logits = model_.forward(run, {ids, positions_, mask_}, long_one ? between_ : nullptr);
  positions_ = positions_.slice(1, -1) + 1;
  if (mask_.defined()) mask_ = at::cat({mask_, at::ones({mask_.size(0), 1}, mask_.options())}, 1);
  return logits.select(1, -1);
}

at::Tensor Decoding::prefill(const at::Tensor& ids, const at::Tensor& mask) {
  if (cache_.past || cache_.spoiled) throw InputError("prefill: this run has begun already");
  if (!ids.defined() || ids.dim() != 2 || ids.size(0) == 0 || ids.size(1) == 0) {
    throw InputError(fmt::format("ids: expected [B, T] with at least one token of prompt, found {}",
                                 ids.defined() ? shape_text(ids.sizes()) : "nothing"));
  }
  model_.check({ids, {}, mask}, &cache_);
  if (mask.defined()) check_left_padding(mask);
  const auto attended = mask.defined() ? mask : at::ones_like(ids);
  // Pads stand at position 0; the first token too.
  positions_ = (attended.cumsum(-1) - 1).masked_fill(attended == 0, 0);
  // Where nothing is padded transformers drops the mask (5.18), or makes of it what it makes of none.
  if (mask.defined() && !(mask == 1).all().item<bool>()) mask_ = mask;
  return forward(ids.contiguous());
}

at::Tensor Decoding::step(const at::Tensor& tokens) {
  if (!cache_.past) throw InputError("step: there is no prompt yet");
  return forward(tokens.unsqueeze(1));
}

at::Tensor choose(const at::Tensor& logits, const std::vector<int64_t>& stop, bool suppressed) {
  auto scores = logits.to(at::kFloat);
  if (suppressed && !stop.empty()) {
    scores = scores.clone();
    for (const auto id : stop) {
      if (id < scores.size(1)) scores.select(1, id).fill_(-std::numeric_limits<float>::infinity());
    }
  }
  return scores.argmax(-1);
}

Generated greedy(Decoding& decoding, const at::Tensor& ids, const at::Tensor& mask, const GreedyOptions& options,
                 const std::function<bool(const GreedyStep&)>& on_step) {
  at::NoGradGuard no_grad;
  if (options.max_new_tokens < 1)
    throw InputError(fmt::format("max_new_tokens {}: expected 1 or more", options.max_new_tokens));
  if (options.min_new_tokens < 0)
    throw InputError(fmt::format("min_new_tokens {}: expected 0 or more", options.min_new_tokens));
  const auto rows = ids.defined() && ids.dim() == 2 ? ids.size(0) : 0;
  if (rows > 1 && !options.stop.empty() && !options.pad)
    throw InputError("pad: rows that end early need a pad token, and there is none");

  Generated out;
  out.tokens.resize(static_cast<size_t>(rows)), out.stopped.resize(static_cast<size_t>(rows));
  auto start = std::chrono::steady_clock::now();
  auto logits = decoding.prefill(ids, mask);
  for (;;) {
    auto tokens = choose(logits, options.stop, out.steps < options.min_new_tokens);
    auto* token = tokens.mutable_data_ptr<int64_t>();
    bool unfinished = false;
    for (size_t row = 0; row < out.tokens.size(); ++row) {
      if (out.stopped[row]) {
        token[row] = *options.pad;
        continue;
      }
      out.tokens[row].push_back(token[row]);
      out.stopped[row] = std::find(options.stop.begin(), options.stop.end(), token[row]) != options.stop.end();
      unfinished |= !out.stopped[row];
    }
    if (options.keep_logits) out.logits.push_back(logits);
    (out.steps ? out.decode_seconds : out.prefill_seconds) += seconds_since(start);
    const bool go_on = !on_step || on_step({out.steps, tokens, logits});
    ++out.steps;
    if (!go_on || !unfinished || out.steps == options.max_new_tokens) return out;
    start = std::chrono::steady_clock::now();
    logits = decoding.step(tokens);
  }
}

}  // namespace lockstep
