// One forward in progress: the arithmetic it uses, the release of transformers it follows, its cache and its recorder.
// Calling a child through the run is what makes the child a capture point.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <tuple>
#include <utility>

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

/// The one thing that differs between a run, the truth and other evaluations of the same code.
struct Arithmetic {
  at::ScalarType up = at::kFloat;  // where HF hard-codes float32
  at::Tensor upcast(const at::Tensor& x) const { return x.to(up); }
};

class Run {
 public:
  Run(const Variant& variant, Attn attn, Level level, Recorder* recorder, Cache* cache, Arithmetic arithmetic = {})
      : variant(variant), attn(attn), arithmetic(arithmetic), cache(cache), level_(level), recorder_(recorder) {}

  /// Calls child.forward(run, x, args...) and records its input and output.
  template <class M, class... Args>
  auto operator()(M& child, const at::Tensor& x, Args&&... args) {
    record(child, ".input", x);
    auto y = child.forward(*this, x, std::forward<Args>(args)...);
    record(child, ".output", first(y));
    return y;
  }

  /// Records a value that has no module of its own, e.g. capture(*this, "q_rope", query).
  void capture(const Module& at, const char* value, const at::Tensor& x) { emit(at.path() + "@" + value, x); }
  void record(const Module& at, const char* side, const at::Tensor& x) { emit(at.path() + side, x); }

  at::Tensor upcast(const at::Tensor& x) const { return arithmetic.upcast(x); }

  const Variant variant;
  const Attn attn;
  const Arithmetic arithmetic;
  Cache* const cache;  // null: this forward neither reads nor leaves one

 private:
  static const at::Tensor& first(const at::Tensor& x) { return x; }
  template <class... T>
  static const at::Tensor& first(const std::tuple<T...>& x) {
    return std::get<0>(x);
  }
  void emit(const std::string& point, const at::Tensor& x) {
    if (recorder_ && level_of(point) <= level_) recorder_->record(point, x);
  }

  const Level level_;
  Recorder* const recorder_;
};

}  // namespace lockstep
