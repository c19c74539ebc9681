// Loads seeded corruptions of valid checkpoints. Each must be refused with a LoadError or load correctly: every
// parameter's bytes are the file's at the place its header states. Anything else ends the program.
//
//   fuzz_checkpoint SEEDS WORK COUNT SEED
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "models/mirror.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

class Corruptor {
 public:
  explicit Corruptor(uint64_t seed) : source_(seed) {}

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(source_); }
  template <class T>
  const T& pick(const std::vector<T>& list) {
    return list[below(static_cast<int64_t>(list.size()))];
  }

  /// One random change of a text: a byte flipped, cut out, doubled, or a token put in.
  void text(std::string& t, size_t begin, size_t end) {
    static const std::vector<std::string> kTokens = {"0",
                                                     "-1",
                                                     "1e400",
                                                     "18446744073709551615",
                                                     "9223372036854775807",
                                                     "4294967296",
                                                     "null",
                                                     "true",
                                                     "[]",
                                                     "{}",
                                                     "\"\"",
                                                     "\\u0000",
                                                     "\xff",
                                                     ",",
                                                     ":",
                                                     "\"",
                                                     "[",
                                                     "]",
                                                     "{",
                                                     "}",
                                                     "1.5",
                                                     "1e-320",
                                                     "\"__metadata__\":{},",
                                                     "2147483648"};
    if (begin >= end) return;
    const auto at = begin + below(static_cast<int64_t>(end - begin));
    switch (below(5)) {
      case 0:
        t[at] = static_cast<char>(t[at] ^ (1 << below(8)));
        break;
      case 1:
        t.erase(at, 1 + below(std::min<int64_t>(40, end - at)));
        break;
      case 2:
        t.insert(at, t.substr(at, 1 + below(std::min<int64_t>(60, end - at))));
        break;
      case 3:
        t.insert(at, pick(kTokens));
        break;
      default:
        number(t, at, end, pick(kTokens));
    }
  }

  /// Replaces the next number in the text.
  void number(std::string& t, size_t at, size_t end, const std::string& by) {
    const auto first = t.find_first_of("0123456789", at);
    if (first == std::string::npos || first >= end) return;
    const auto last = t.find_first_not_of("0123456789.e-+", first);
    t.replace(first, last == std::string::npos ? std::string::npos : last - first, by);
  }

  void safetensors(std::string& bytes) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    switch (below(6)) {
      case 0:
        bytes[below(8)] = static_cast<char>(below(256));
        break;  // the length
      case 1:
        bytes.resize(below(static_cast<int64_t>(bytes.size())));
        break;  // truncated
      case 2:
        bytes.append(1 + below(100), '\0');
        break;  // longer
      case 3:
        bytes[below(static_cast<int64_t>(bytes.size()))] ^= 1;
        break;    // anywhere
      default: {  // the header
        std::string header = bytes.substr(8, length);
        for (int64_t n = 1 + below(3); n > 0; --n) text(header, 0, header.size());
        if (below(2)) {  // with a length that fits, so that the JSON is reached
          uint64_t fresh = header.size();
          std::string prefix(8, '\0');
          std::memcpy(prefix.data(), &fresh, 8);
          bytes = prefix + header + bytes.substr(8 + length);
        } else {
          bytes = bytes.substr(0, 8) + header + bytes.substr(8 + length);
        }
      }
    }
  }

 private:
  std::mt19937_64 source_;
};

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
