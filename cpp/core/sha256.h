// SHA-256 through OpenSSL.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(const void* data, size_t size);
  void update(const std::string& text) { update(text.data(), text.size()); }
  std::string hex();  // once

 private:
  void* context_;
};

/// The digest of each range of bytes, in hex, on torch's number of threads, which are its own and inherit the caller's
/// niceness: whoever is free takes the largest that is left. Where `given_up` turns true they stop soon, and what they
/// return is of no use.
std::vector<std::string> sha256_each(const std::vector<std::pair<const void*, size_t>>& ranges,
                                     const std::atomic<bool>* given_up = nullptr);

}  // namespace lockstep
