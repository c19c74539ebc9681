#include "core/metrics.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/tensor_text.h"

namespace lockstep {

namespace {

constexpr int64_t kGrain = 1 << 16;

/// Integers in the order of the floats they encode, with +0 and -0 both 0.
inline int64_t ordered(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits < 0 ? -int64_t(bits & 0x7fffffff) : int64_t(bits);
}
inline int64_t ordered(double x) {
  int64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits < 0 ? -(bits & std::numeric_limits<int64_t>::max()) : bits;
}
template <class Half>
inline int64_t ordered_half(Half x) {
  const int16_t bits = static_cast<int16_t>(x.x);
  return bits < 0 ? -int64_t(bits & 0x7fff) : int64_t(bits);
}
inline int64_t ordered(at::Half x) { return ordered_half(x); }
inline int64_t ordered(at::BFloat16 x) { return ordered_half(x); }

struct Sums {
  int64_t bad = 0, worst = -1, first_nan = -1;
  double max_ulp = 0, max_abs = -1, diff2 = 0, ref2 = 0, cand2 = 0, dot = 0;
  bool reference_nan = false;

  void merge(const Sums& o) {  // in index order, so that ties keep the first index
    bad += o.bad;
    if (first_nan < 0) first_nan = o.first_nan;
    if (o.max_abs > max_abs) max_abs = o.max_abs, worst = o.worst;
    max_ulp = std::max(max_ulp, o.max_ulp);
    diff2 += o.diff2, ref2 += o.ref2, cand2 += o.cand2, dot += o.dot;
    reference_nan |= o.reference_nan;
  }
};

template <class T>
Sums sums(const T* r, const T* c, int64_t begin, int64_t end, const Gate& gate) {
  Sums s;
  for (int64_t i = begin; i < end; ++i) {
    const double x = static_cast<double>(r[i]), y = static_cast<double>(c[i]);
    if (std::isnan(x) || std::isnan(y)) {
      if (s.first_nan < 0) s.first_nan = i;
      s.reference_nan |= std::isnan(x);
      ++s.bad;
      continue;
    }
    const double diff = x == y ? 0.0 : std::abs(y - x);  // equal infinities are equal
    // An infinite difference never agrees, whatever rtol times an infinite reference would allow.
    if (diff != 0 && !(std::isfinite(diff) && diff <= gate.atol + gate.rtol * std::abs(x))) ++s.bad;
    if (diff > s.max_abs) s.max_abs = diff, s.worst = i;
    s.max_ulp = std::max(s.max_ulp, std::abs(double(ordered(r[i])) - double(ordered(c[i]))));
    s.diff2 += diff * diff, s.ref2 += x * x, s.cand2 += y * y, s.dot += x * y;
  }
  return s;
}

template <class T>
bool has_nan(const T* x, int64_t n) {
  bool found = false;
  at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
    bool nan = false;
    for (int64_t i = begin; i < end; ++i) nan |= x[i] != x[i];
    if (nan) __atomic_store_n(&found, true, __ATOMIC_RELAXED);
  });
  return found;
}

template <class T>
Metrics compare_floats(const at::Tensor& reference, const at::Tensor& candidate, const Gate& gate) {
  const int64_t n = reference.numel();
  const T* r = reference.const_data_ptr<T>();
  const T* c = candidate.const_data_ptr<T>();
  Metrics m;
  m.elements = n;
  if (same_bits(reference, candidate) && !has_nan(r, n)) return m;

  // A fixed split, merged in order: the sums do not depend on the number of threads.
  const int64_t parts = (n + kGrain - 1) / kGrain;
  std::vector<Sums> partial(parts);
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) partial[p] = sums(r, c, p * kGrain, std::min(n, (p + 1) * kGrain), gate);
  });
  Sums s;
  for (const auto& p : partial) s.merge(p);

  m.bad_elements = s.bad;
  m.max_ulp = s.max_ulp;
  m.max_abs = std::max(s.max_abs, 0.0);
  m.rel_l2 = s.diff2 == 0 ? 0 : std::sqrt(s.diff2 / s.ref2);
  m.cosine = s.ref2 == 0 && s.cand2 == 0 ? 1 : s.dot / std::sqrt(s.ref2 * s.cand2);
  if (s.worst >= 0 && s.max_abs > 0) m.worst_index = unravel(s.worst, reference.sizes());
  m.verdict = s.bad ? Verdict::deviates : Verdict::agrees;
  if (s.first_nan >= 0) {
    m.verdict = Verdict::non_finite;
    m.worst_index = unravel(s.first_nan, reference.sizes());
    m.reference_non_finite = s.reference_nan;
    m.max_ulp = m.max_abs = m.rel_l2 = m.cosine = std::numeric_limits<double>::quiet_NaN();
  }
  return m;
}

Metrics compare_integers(const at::Tensor& reference, const at::Tensor& candidate) {
  Metrics m;
  m.elements = reference.numel();
  const int64_t at = first_difference(reference, candidate);
  if (at < 0) return m;
  const auto difference = (candidate.to(at::kDouble) - reference.to(at::kDouble)).abs();
  m.verdict = Verdict::deviates;
  m.bad_elements = difference.ne(0).sum().item<int64_t>();
  m.max_abs = m.max_ulp = difference.max().item<double>();
  m.rel_l2 = m.cosine = std::numeric_limits<double>::quiet_NaN();
  m.worst_index = unravel(difference.argmax().item<int64_t>(), reference.sizes());
  return m;
}

}  // namespace

const char* name(Verdict verdict) {
  switch (verdict) {
    case Verdict::identical:
      return "identical";
    case Verdict::agrees:
      return "agrees";
    case Verdict::rounding:
      return "rounding";
    case Verdict::deviates:
      return "deviates";
    case Verdict::dtype:
      return "dtype";
    case Verdict::shape:
      return "shape";
    case Verdict::missing:
      return "missing";
    case Verdict::non_finite:
      return "non_finite";
  }
  return "?";
}

Verdict verdict_named(const std::string& text) {
  for (auto v : {Verdict::identical, Verdict::agrees, Verdict::rounding, Verdict::deviates, Verdict::dtype,
                 Verdict::shape, Verdict::missing}) {
    if (text == name(v)) return v;
  }
  return Verdict::non_finite;
}

bool same_bits(const at::Tensor& a_in, const at::Tensor& b_in) {
  const auto a = a_in.contiguous(), b = b_in.contiguous();
  const auto* x = static_cast<const char*>(a.const_data_ptr());
  const auto* y = static_cast<const char*>(b.const_data_ptr());
  if (x == y) return true;
  bool same = true;
  at::parallel_for(0, static_cast<int64_t>(a.nbytes()), kGrain * 4, [&](int64_t begin, int64_t end) {
    if (std::memcmp(x + begin, y + begin, end - begin) != 0) __atomic_store_n(&same, false, __ATOMIC_RELAXED);
  });
  return same;
}

int64_t first_difference(const at::Tensor& a_in, const at::Tensor& b_in) {
  const auto a = a_in.contiguous(), b = b_in.contiguous();
  const auto* x = static_cast<const char*>(a.const_data_ptr());
  const auto* y = static_cast<const char*>(b.const_data_ptr());
  const size_t size = a.element_size();
  for (int64_t i = 0, n = a.numel(); i < n; ++i) {
    if (std::memcmp(x + i * size, y + i * size, size) != 0) return i;
  }
  return -1;
}

Metrics compare(const at::Tensor& reference_in, const at::Tensor& candidate_in, const Gate& gate) {
  Metrics m;
  m.elements = reference_in.numel();
  if (reference_in.sizes() != candidate_in.sizes() || reference_in.scalar_type() != candidate_in.scalar_type()) {
    m.verdict = reference_in.sizes() != candidate_in.sizes() ? Verdict::shape : Verdict::dtype;
    m.max_ulp = m.max_abs = m.rel_l2 = m.cosine = std::numeric_limits<double>::quiet_NaN();
    m.bad_elements = m.elements;
    return m;
  }
  const auto reference = reference_in.contiguous(), candidate = candidate_in.contiguous();
  switch (reference.scalar_type()) {
    case at::kFloat:
      return compare_floats<float>(reference, candidate, gate);
    case at::kDouble:
      return compare_floats<double>(reference, candidate, gate);
    case at::kHalf:
      return compare_floats<at::Half>(reference, candidate, gate);
    case at::kBFloat16:
      return compare_floats<at::BFloat16>(reference, candidate, gate);
    default:
      break;
  }
  if (at::isIntegralType(reference.scalar_type(), /*includeBool=*/true)) return compare_integers(reference, candidate);
  throw InputError("cannot compare tensors of dtype " + dtype_name(reference.scalar_type()));
}

LogitsAgreement compare_logits(const at::Tensor& reference, const at::Tensor& candidate, const at::Tensor& mask) {
  LogitsAgreement agreement;
  double kl = 0;
  int64_t same = 0, counted = 0;
  for (int64_t b = 0; b < reference.size(0); ++b) {
    for (int64_t t = 0; t < reference.size(1); ++t) {  // row by row: float64 copies of whole logits would be large
      if (mask.defined() && mask[b][mask.size(1) - reference.size(1) + t].item<int64_t>() == 0) continue;
      const auto r = reference[b][t], c = candidate[b][t];
      ++counted;
      if (same_bits(r, c)) {
        ++same;
        continue;
      }
      const auto p = r.to(at::kDouble).log_softmax(-1), q = c.to(at::kDouble).log_softmax(-1);
      kl += (p.exp() * (p - q)).sum().item<double>();
      same += r.argmax(-1).item<int64_t>() == c.argmax(-1).item<int64_t>();
    }
  }
  if (counted) agreement.kl = kl / double(counted), agreement.top1_agreement = double(same) / double(counted);
  return agreement;
}

uint64_t fingerprint(const at::Tensor& x_in) {
  const auto x = x_in.contiguous();
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ull;
  uint64_t lanes[4] = {static_cast<uint64_t>(x.scalar_type()), static_cast<uint64_t>(x.dim()), 0x243F6A8885A308D3ull,
                       1};
  for (const auto size : x.sizes()) lanes[1] = (lanes[1] ^ static_cast<uint64_t>(size)) * kPrime;
  const auto* bytes = static_cast<const char*>(x.const_data_ptr());
  size_t left = static_cast<size_t>(x.nbytes());
  auto mix = [](uint64_t lane, uint64_t word) {
    const auto y = (lane ^ word) * kPrime;
    return y ^ (y >> 29);
  };
  for (; left >= 32; left -= 32, bytes += 32) {  // four lanes, so that the multiplications overlap
    uint64_t words[4];
    std::memcpy(words, bytes, 32);
    for (int i = 0; i < 4; ++i) lanes[i] = mix(lanes[i], words[i]);
  }
  for (; left > 0; --left, ++bytes) lanes[0] = mix(lanes[0], static_cast<unsigned char>(*bytes));
  uint64_t all = 0;
  for (const auto lane : lanes) all = mix(all, lane);
  return all;
}

}  // namespace lockstep
