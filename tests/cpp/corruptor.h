// Seeded corruptions of valid files, for the fuzzers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace lockstep::fuzz {

namespace fs = std::filesystem;

inline std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

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

  /// One random change of a binary file: a bit flipped, a byte of any value, a run cut out or doubled. Half of them at
  /// its ends, where what describes the rest stands.
  void bytes(std::string& b) {
    if (b.empty()) return;
    const auto size = static_cast<int64_t>(b.size());
    const auto near = std::min<int64_t>(size, 400);
    const auto at = static_cast<size_t>(below(2) ? below(size) : below(2) ? below(near) : size - 1 - below(near));
    switch (below(4)) {
      case 0:
        b[at] = static_cast<char>(b[at] ^ (1 << below(8)));
        break;
      case 1:
        b[at] = static_cast<char>(below(256));
        break;
      case 2:
        b.erase(at, 1 + below(20));
        break;
      default:
        b.insert(at, b.substr(at, 1 + below(40)));
    }
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

}  // namespace lockstep::fuzz
