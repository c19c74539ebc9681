#include "verify/len130.h"

#include <array>
#include <bit>
#include <random>
#include <sstream>

namespace lockstep {

namespace {

constexpr uint32_t kSeed = 20260101;
constexpr int kDrawnBefore = 1 + 2 + 3 + 4 + 5 + 63 + 64 + 65;  // by the shorter default inputs

/// The Mersenne twister as CPython seeds it: init_by_array of one word (Matsumoto and Nishimura, mt19937ar).
std::mt19937 as_python_seeds(uint32_t seed) {
  constexpr uint32_t n = 624;
  std::array<uint32_t, n> state;
  state[0] = 19650218;
  const auto mixed = [&](uint32_t i) { return state[i - 1] ^ (state[i - 1] >> 30); };
  for (uint32_t i = 1; i < n; ++i) state[i] = 1812433253u * mixed(i) + i;
  uint32_t i = 1;
  const auto next = [&] {
    if (++i == n) state[0] = state[n - 1], i = 1;
  };
  for (uint32_t k = 0; k < n; ++k) state[i] = (state[i] ^ (mixed(i) * 1664525u)) + seed, next();
  for (uint32_t k = 1; k < n; ++k) state[i] = (state[i] ^ (mixed(i) * 1566083941u)) - i, next();
  state[0] = 0x80000000u;
  std::stringstream text;
  for (const auto word : state) text << word << ' ';
  text << n;  // where libstdc++ stands among the words: at their end
  std::mt19937 engine;
  text >> engine;
  return engine;
}

}  // namespace

at::Tensor len130_ids(int64_t vocab) {
  auto engine = as_python_seeds(kSeed);
  const auto bits = std::bit_width(static_cast<uint64_t>(vocab));
  const auto below = [&] {  // randrange
    while (true) {
      const auto r = static_cast<int64_t>(engine() >> (32 - bits));
      if (r < vocab) return r;
    }
  };
  for (int i = 0; i < kDrawnBefore; ++i) below();
  std::vector<int64_t> ids(130);
  for (auto& id : ids) id = below();
  return at::tensor(ids, at::kLong).unsqueeze(0);
}

}  // namespace lockstep
