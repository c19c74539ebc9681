#include "core/sha256.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <numeric>

#include "core/error.h"

namespace lockstep {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  if (!context_ || EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) != 1) {
    throw Error("OpenSSL has no SHA-256");
  }
}
Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void Sha256::update(const void* data, size_t size) { EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), data, size); }

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest, &size);
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::vector<std::string> sha256_each(const std::vector<std::pair<const void*, size_t>>& ranges,
                                     const std::atomic<bool>* given_up) {
  constexpr size_t kBlock = size_t{32} << 20;
  std::vector<size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ranges[a].second > ranges[b].second; });
  std::vector<std::string> hex(ranges.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next++) < order.size();) {
      const auto& [data, size] = ranges[order[i]];
      Sha256 sha;
      for (size_t done = 0; done < size; done += kBlock) {
        if (given_up && *given_up) return;
        sha.update(static_cast<const char*>(data) + done, std::min(kBlock, size - done));
      }
      hex[order[i]] = sha.hex();
    }
  };
  std::vector<std::future<void>> others;  // a future's destructor waits, so nothing outlives what it works on
  for (int t = 1; t < at::get_num_threads(); ++t) others.push_back(std::async(std::launch::async, work));
  work();
  for (auto& other : others) other.get();
  return hex;
}

}  // namespace lockstep
