#include "verify/changed.h"

namespace lockstep {

double Changed::number(const Module& at, const char* name, double config) const {
  if (change_.number != name || !here(at) || !at.path().ends_with(change_.module)) return config;
  config_ = config;
  if (change_.value) return *change_.value;
  return change_.value_of ? change_.value_of(config) : config;
}

at::Tensor Changed::rms_normalized(const Module& at, const at::Tensor& x, double eps) const {
  const bool changed = change_.rms_normalized && here(at) && at.path().ends_with(change_.module);
  return changed ? change_.rms_normalized(*this, at, x, eps) : Arithmetic::rms_normalized(at, x, eps);
}
at::Tensor Changed::norm_scale(const Module& at, const at::Tensor& weight, bool zero_centred) const {
  const bool changed = change_.norm_scale && here(at) && at.path().ends_with(change_.module);
  return changed ? change_.norm_scale(*this, at, weight, zero_centred)
                 : Arithmetic::norm_scale(at, weight, zero_centred);
}
at::Tensor Changed::l2norm(const Module& at, const at::Tensor& x) const {
  return change_.l2norm && here(at) ? change_.l2norm(*this, at, x) : Arithmetic::l2norm(at, x);
}
at::Tensor Changed::silu(const Module& at, const at::Tensor& x) const {
  return change_.silu && here(at) ? change_.silu(*this, at, x) : Arithmetic::silu(at, x);
}
at::Tensor Changed::gate(const Module& at, const at::Tensor& x, const at::Tensor& gate) const {
  return change_.gate && here(at) ? change_.gate(*this, at, x, gate) : Arithmetic::gate(at, x, gate);
}
at::Tensor Changed::residual(const Module& at, const at::Tensor& stream, const at::Tensor& x) const {
  return change_.residual && here(at) ? change_.residual(*this, at, stream, x) : Arithmetic::residual(at, stream, x);
}
at::Tensor Changed::repeat_heads(const Module& at, const at::Tensor& x, int64_t times, int64_t dim) const {
  return change_.repeat_heads && here(at) ? change_.repeat_heads(at, x, times, dim)
                                          : Arithmetic::repeat_heads(at, x, times, dim);
}
Change::Pair Changed::split_pair(const Module& at, const at::Tensor& x, int64_t head_dim) const {
  return change_.split_pair && here(at) ? change_.split_pair(at, x, head_dim) : Arithmetic::split_pair(at, x, head_dim);
}
at::Tensor Changed::rotate(const Module& at, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                           bool partial) const {
  return change_.rotate && here(at) ? change_.rotate(at, x, cos, sin) : Arithmetic::rotate(at, x, cos, sin, partial);
}
at::Tensor Changed::inv_freq(const Module& at, const at::Tensor& formula) const {
  return change_.inv_freq && here(at) ? change_.inv_freq(*this, at, formula) : formula;
}
at::Tensor Changed::positions(const Module& at, const at::Tensor& positions) const {
  return change_.positions && here(at) ? change_.positions(*this, at, positions) : positions;
}
Change::Pair Changed::tables(const Module& at, const at::Tensor& cos, const at::Tensor& sin) const {
  return change_.tables && here(at) ? change_.tables(cos, sin) : Change::Pair{cos, sin};
}
at::Tensor Changed::visible(const Module& at, const at::Tensor& mask) const {
  return change_.visible && here(at) ? change_.visible(*this, at, mask) : mask;
}
at::Tensor Changed::beta(const Module& at, const at::Tensor& b) const {
  return change_.beta && here(at) ? change_.beta(*this, at, b) : Arithmetic::beta(at, b);
}
at::Tensor Changed::decay(const Module& at, const at::Tensor& A_log, const at::Tensor& a,
                          const at::Tensor& dt_bias) const {
  return change_.decay && here(at) ? change_.decay(*this, A_log, a, dt_bias) : Arithmetic::decay(at, A_log, a, dt_bias);
}
at::Tensor Changed::delta(const Module& at, const at::Tensor& value, const at::Tensor& memory,
                          const at::Tensor& beta) const {
  return change_.delta && here(at) ? change_.delta(value, memory, beta) : Arithmetic::delta(at, value, memory, beta);
}
at::Tensor Changed::decayed_keys(const Module& at, const at::Tensor& k_beta, const at::Tensor& cum_decay) const {
  return change_.decayed_keys && here(at) ? change_.decayed_keys(*this, at, k_beta, cum_decay)
                                          : Arithmetic::decayed_keys(at, k_beta, cum_decay);
}
at::Tensor Changed::state_in(const Module& at, const at::Tensor& state) const {
  return change_.state_in && here(at) ? change_.state_in(*this, at, state) : state;
}
at::Tensor Changed::state_out(const Module& at, const at::Tensor& state) const {
  return change_.state_out && here(at) ? change_.state_out(*this, at, state) : state;
}
at::Tensor Changed::gated_norm(const Module& at, const at::Tensor& normed, const at::Tensor& gate) const {
  return change_.gated_norm && here(at) ? change_.gated_norm(*this, at, normed, gate)
                                        : Arithmetic::gated_norm(at, normed, gate);
}
at::Tensor Changed::recurrent_mask(const Module& at, const at::Tensor& mask) const {
  return change_.recurrent_mask && here(at) ? change_.recurrent_mask(*this, at, mask) : mask;
}

}  // namespace lockstep
