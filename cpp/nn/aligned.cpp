#include "nn/aligned.h"

#include <cstdint>

namespace lockstep {

at::Tensor aligned(const at::Tensor& x) {
  constexpr uintptr_t kAlignment = 64;  // c10's, on the CPU
  if (!x.defined() || reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kAlignment == 0) return x;
  return x.clone(at::MemoryFormat::Contiguous);
}

}  // namespace lockstep
