// Loads seeded corruptions of valid checkpoints. Each must be refused with a LoadError or load correctly: every
// parameter's bytes are the file's at the place its header states. Anything else ends the program.
//
//   fuzz_checkpoint SEEDS WORK COUNT SEED
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "corruptor.h"
#include "models/mirror.h"

namespace fs = std::filesystem;
using lockstep::fuzz::Corruptor;
using lockstep::fuzz::read;
using lockstep::fuzz::write;
using nlohmann::json;

namespace {

/// The bytes of every tensor by the headers' own word, read in another way than the library does.
std::map<std::string, std::string> plain_bytes(const fs::path& folder, const std::vector<std::string>& files) {
  std::map<std::string, std::string> found;
  for (const auto& file : files) {
    const auto bytes = read(folder / file);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    const auto header = json::parse(bytes.substr(8, length));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const uint64_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      found[name] = bytes.substr(8 + length + begin, end - begin);
    }
  }
  return found;
}

/// Ends the program if what was loaded is not what the files say.
void check_loaded(const lockstep::Mirror& mirror, const fs::path& folder) {
  std::vector<std::string> files;
  for (const auto& name : mirror.checkpoint().names()) files.push_back(mirror.checkpoint().file_name(name));
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  const auto expected = plain_bytes(folder, files);
  for (const auto& [parameter, source] : mirror.match().source) {
    const auto tensor = mirror.checkpoint().tensor(source);
    const auto& bytes = expected.at(source);
    if (tensor.nbytes() != bytes.size() || std::memcmp(tensor.const_data_ptr(), bytes.data(), bytes.size()) != 0) {
      std::fprintf(stderr, "%s was loaded with other bytes than the file's\n", source.c_str());
      std::abort();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: fuzz_checkpoint SEEDS WORK COUNT SEED\n");
    return 2;
  }
  std::vector<fs::path> seeds;
  for (const auto& entry : fs::directory_iterator(argv[1])) seeds.push_back(entry.path());
  std::sort(seeds.begin(), seeds.end());
  const fs::path work = argv[2];
  const int64_t count = std::atoll(argv[3]);
  Corruptor corruptor(std::strtoull(argv[4], nullptr, 10));

  int64_t refused = 0, loaded = 0;
  for (int64_t i = 0; i < count; ++i) {
    ::alarm(60);  // a hang ends the program too
    fs::remove_all(work);
    fs::copy(corruptor.pick(seeds), work);
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(work)) {
      if (entry.path().filename() != "generation_config.json") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    const auto file = corruptor.pick(files);
    auto bytes = read(file);
    if (corruptor.below(50) == 0) {
      fs::remove(file);
    } else {
      if (file.extension() == ".safetensors") {
        corruptor.safetensors(bytes);
      } else {
        for (int64_t n = 1 + corruptor.below(3); n > 0; --n) corruptor.text(bytes, 0, bytes.size());
      }
      write(file, bytes);
    }
    try {
      const auto mirror = lockstep::Mirror::open(work.string());
      mirror->bind(at::kFloat);
      check_loaded(*mirror, work);
      at::NoGradGuard no_grad;
      lockstep::Run run(lockstep::Variant::named("5.18"), lockstep::Attn::sdpa, lockstep::Level::layer, nullptr,
                        nullptr);
      mirror->model().forward(run, {at::arange(3).view({1, 3}), {}, {}});
      ++loaded;
    } catch (const lockstep::Error&) {
      ++refused;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "corruption %ld: another exception than ours: %s\n", static_cast<long>(i), e.what());
      return 1;
    }
    if ((i + 1) % 1000 == 0) std::fprintf(stderr, "%ld of %ld\n", static_cast<long>(i + 1), static_cast<long>(count));
  }
  std::printf("%ld corruptions: %ld refused, %ld loaded correctly, 0 crashes\n", static_cast<long>(count),
              static_cast<long>(refused), static_cast<long>(loaded));
  return 0;
}
