// SHA-256 through OpenSSL.
#pragma once

#include <cstddef>
#include <string>

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

}  // namespace lockstep
