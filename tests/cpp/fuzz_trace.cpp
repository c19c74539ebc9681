// Reads and judges seeded corruptions of a valid trace. Each must be refused with one of our errors, or be judged.
//
//   fuzz_trace CHECKPOINT TRACE WORK COUNT SEED
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "core/error.h"
#include "corruptor.h"
#include "io/trace.h"
#include "verify/bisect.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  using namespace lockstep;
  if (argc != 6) {
    std::fprintf(stderr, "usage: fuzz_trace CHECKPOINT TRACE WORK COUNT SEED\n");
    return 2;
  }
  const auto valid = fuzz::read(argv[2]);
  const fs::path work = argv[3];
  const int64_t count = std::atoll(argv[4]);
  fuzz::Corruptor corruptor(std::strtoull(argv[5], nullptr, 10));
  BisectOptions options;
  options.values = true, options.causes = false;
  options.len130 = {"len130", at::arange(4).view({1, 4}), {}, {}, ""};

  int64_t refused = 0, judged = 0, faulty = 0;
  for (int64_t i = 0; i < count; ++i) {
    ::alarm(60);  // a hang ends the program too
    auto bytes = valid;
    corruptor.safetensors(bytes);
    fuzz::write(work, bytes);
    try {
      const auto trace = std::make_shared<Trace>(Trace::open(work.string()));
      options.dtype = trace->dtype();
      const auto found = bisect(argv[1], nullptr, trace, options);
      trace->check_unchanged();
      ++judged;
      faulty += !found["faults"].empty() || !found["extra"].empty();
    } catch (const Error&) {
      ++refused;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "corruption %ld: another exception than ours: %s\n", static_cast<long>(i), e.what());
      return 1;
    }
    if ((i + 1) % 1000 == 0) std::fprintf(stderr, "%ld of %ld\n", static_cast<long>(i + 1), static_cast<long>(count));
  }
  std::printf("%ld corruptions of a trace: %ld refused, %ld judged (%ld faulty), 0 crashes\n", static_cast<long>(count),
              static_cast<long>(refused), static_cast<long>(judged), static_cast<long>(faulty));
  return 0;
}
