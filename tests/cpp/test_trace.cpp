// What a trace's forwards continue.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "io/trace.h"

namespace lockstep {
namespace {

TEST(Trace, AChainOfForwardsIsAsLongAsItsFileSays) {
  constexpr int64_t kForwards = 300'000;  // a stack has no room for a call each
  const auto ids = at::zeros({1, 1}, at::kLong);
  std::vector<TraceForward> forwards;
  for (int64_t i = 0; i < kForwards; ++i)
    forwards.push_back({fmt::format("f{}", i), ids, {}, {}, i ? fmt::format("f{}", i - 1) : ""});
  const Trace trace("float32", "sdpa", "5.18", std::move(forwards));
  EXPECT_EQ(trace.past("f0"), 0);
  EXPECT_EQ(trace.past(fmt::format("f{}", kForwards - 1)), kForwards - 1);
}

}  // namespace
}  // namespace lockstep
