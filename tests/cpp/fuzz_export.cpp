// Seeded corruptions of an export's manifest and of a golden trace: none may be accepted, crash, or hang. One more of
// each manifest is sealed again, as by somebody who means harm: it may say anything, but must not crash or hang.
//
//   fuzz_export EXPORT CHECKPOINT GOLDEN WORK COUNT SEED
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "core/error.h"
#include "corruptor.h"
#include "verify/check.h"
#include "verify/manifest.h"
#include "verify/replay.h"

namespace {

using namespace lockstep;
namespace fs = std::filesystem;

/// What becomes of one corruption: 0 refused with one of our errors, 1 judged and red, 2 accepted, 3 another exception.
template <class Judge>
int outcome(Judge&& judge) {
  try {
    return judge()["exit_code"] == 0 ? 2 : 1;
  } catch (const Error&) {
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "another exception than ours: %s\n", e.what());
    return 3;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: fuzz_export EXPORT CHECKPOINT GOLDEN WORK COUNT SEED\n");
    return 2;
  }
  const fs::path work = argv[4];
  fs::copy(argv[1], work);
  const fs::path manifest = work / kManifest, trace = work.string() + ".trace";
  const auto valid_manifest = fuzz::read(manifest), valid_trace = fuzz::read(argv[3]);
  const int64_t count = std::atoll(argv[5]);
  fuzz::Corruptor corruptor(std::strtoull(argv[6], nullptr, 10));
  const auto check = [&] { return check_export(work.string(), {}, [](const std::string&) {}); };
  const auto judge = [&] { return replay(argv[2], open_golden(trace.string()), {}); };
  fuzz::write(trace, valid_trace);
  if (outcome(check) != 2 || outcome(judge) != 2) {
    std::fprintf(stderr, "the valid export or the valid trace does not pass\n");
    return 2;
  }
  int64_t counts[2][2] = {}, resealed[3] = {};
  for (int64_t i = 0; i < count; ++i) {
    for (const bool of_trace : {false, true}) {
      ::alarm(120);  // a hang ends the program too
      auto bytes = of_trace ? valid_trace : valid_manifest;
      if (of_trace) {
        corruptor.safetensors(bytes);
      } else {
        for (int64_t n = 1 + corruptor.below(3); n > 0; --n) corruptor.text(bytes, 0, bytes.size());
      }
      if (bytes == (of_trace ? valid_trace : valid_manifest)) continue;
      fuzz::write(of_trace ? trace : manifest, bytes);
      const auto found = of_trace ? outcome(judge) : outcome(check);
      if (found >= 2) {
        std::fprintf(stderr, "corruption %ld of the %s: %s\n", static_cast<long>(i), of_trace ? "trace" : "manifest",
                     found == 2 ? "accepted" : "see above");
        return 1;
      }
      ++counts[of_trace][found];
    }
    auto sealed = valid_manifest;
    for (int64_t n = 1 + corruptor.below(3); n > 0; --n) corruptor.text(sealed, 0, sealed.size());
    const auto manifest_json = nlohmann::json::parse(sealed, nullptr, /*allow_exceptions=*/false);
    if (manifest_json.is_object()) {
      try {
        fuzz::write(manifest, manifest_text(manifest_json));
      } catch (const nlohmann::json::exception&) {  // no UTF-8: nobody can write it so
        continue;
      }
      const auto found = outcome(check);
      if (found == 3) return 1;
      ++resealed[found];
    }
    if ((i + 1) % 1000 == 0) std::fprintf(stderr, "%ld of %ld\n", static_cast<long>(i + 1), static_cast<long>(count));
  }
  for (const bool of_trace : {false, true}) {
    std::printf("%ld corruptions of a %s: %ld refused, %ld red, 0 accepted, 0 crashes\n",
                static_cast<long>(counts[of_trace][0] + counts[of_trace][1]), of_trace ? "golden trace" : "manifest",
                static_cast<long>(counts[of_trace][0]), static_cast<long>(counts[of_trace][1]));
  }
  std::printf("%ld manifests sealed again: %ld refused, %ld red, %ld about what the bytes do not tell, 0 crashes\n",
              static_cast<long>(resealed[0] + resealed[1] + resealed[2]), static_cast<long>(resealed[0]),
              static_cast<long>(resealed[1]), static_cast<long>(resealed[2]));
  return 0;
}
