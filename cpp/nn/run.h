// One forward in progress: the arithmetic it uses, the release of transformers it follows, its cache and its recorder.
// Calling a child through the run is what makes the child a capture point.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <tuple>
#include <utility>

#include "nn/arithmetic.h"
#include "nn/cache.h"
#include "nn/module.h"
#include "nn/recorder.h"

namespace lockstep {

enum class Attn { sdpa, eager };

/// What differs between releases of transformers, by name. Measured on 5.10.4, 5.18.0 and 5.24.0.
struct Variant {
  std::string name;
  /// Chunked rule: rows of (I - A)^-1 one by one, l2norm before the upcast, decay inside the scan; else
  /// solve_triangular, l2norm after the upcast, decay before the scan. The recurrent rule's l2norm and scale go along.
  bool delta_rule_by_rows = false;
  /// The recurrent state is stored in the conv state's dtype; else in float32.
  bool state_in_run_dtype = false;
  /// Padding reaches the linear layers only if B > 1 and T > 1, and never once a cache has state; else always, as the
  /// last T columns, unless T == 1.
  bool mask_batches_only = false;
  /// A cached first part shorter than the conv kernel is zero-padded before the convolution.
  bool conv_pads_short_prefill = true;
  /// SDPA uses its own head grouping whatever the head's size; else up to 256.
  bool gqa_any_head_dim = false;
  /// A single masked query is packed by groups instead of repeating keys and values.
  bool packs_single_query = false;

  /// "5.10", "5.18" or "5.24". Raises InputError for another name.
  static Variant named(const std::string& name);
};

/// What a forward gives every layer beside the hidden states.
struct Context {
  at::Tensor cos, sin;        // [B, T, rotary_dim]
  at::Tensor mask;            // causal_mask()
  at::Tensor recurrent_mask;  // recurrent_mask()
};

class Run {
 public:
  /// `arithmetic` must outlive the run.
  Run(const Variant& variant, Attn attn, Level level, Recorder* recorder, Cache* cache,
      const Arithmetic& arithmetic = hf_arithmetic())
      : variant(variant), attn(attn), arithmetic(arithmetic), cache(cache), level_(level), recorder_(recorder) {}

  /// Calls child.forward(run, x, args...) and records its input and output.
  template <class M, class... Args>
  auto operator()(M& child, const at::Tensor& x, Args&&... args) {
    if (!recorder_) return child.forward(*this, x, std::forward<Args>(args)...);
    const auto input = record(child, ".input", x);
    return finished(child, child.forward(*this, input, std::forward<Args>(args)...));
  }

  /// Records a value that has no module of its own and returns what the run goes on with:
  /// query = run.capture(*this, "q_rope", query).
  [[nodiscard]] at::Tensor capture(const Module& at, const char* value, const at::Tensor& x) {
    return recorder_ ? emit(at.path() + "@" + value, x) : x;
  }
  at::Tensor record(const Module& at, const char* side, const at::Tensor& x) {
    return recorder_ ? emit(at.path() + side, x) : x;
  }

  at::Tensor upcast(const at::Tensor& x) const { return arithmetic.upcast(x); }

  const Variant variant;
  const Attn attn;
  const Arithmetic& arithmetic;
  Cache* const cache;          // null: this forward neither reads nor leaves one
  int64_t logits_to_keep = 0;  // how many last positions the head is run on, as HF's argument of that name; 0: all

 private:
  at::Tensor finished(const Module& child, const at::Tensor& y) { return record(child, ".output", y); }
  template <class... T>
  std::tuple<T...> finished(const Module& child, std::tuple<T...> y) {
    record(child, ".output", std::get<0>(y));
    return y;
  }
  at::Tensor emit(const std::string& point, const at::Tensor& x) {
    if (level_of(point) > level_) return x;
    recorder_->record(point, x);
    const auto* instead = recorder_->instead(point, x);
    return instead ? *instead : x;
  }

  const Level level_;
  Recorder* const recorder_;
};

}  // namespace lockstep
