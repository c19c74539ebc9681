// Opens and uses seeded corruptions of valid tokenizers. Each must be refused with one of our errors, or work.
//
//   fuzz_tokenizer FOLDER_OF_TOKENIZERS WORK COUNT SEED
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "core/error.h"
#include "corruptor.h"
#include "text/open.h"
#include "text/utf8.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  using namespace lockstep;
  if (argc != 5) {
    std::fprintf(stderr, "usage: fuzz_tokenizer FOLDER_OF_TOKENIZERS WORK COUNT SEED\n");
    return 2;
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(argv[1])) {
    const auto name = entry.path().filename();
    if (name == "tokenizer.json" || name == "tokenizer.model") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    std::fprintf(stderr, "%s: no tokenizer in it\n", argv[1]);
    return 2;
  }
  const fs::path work = argv[2];
  const int64_t count = std::atoll(argv[3]);
  fuzz::Corruptor corruptor(std::strtoull(argv[4], nullptr, 10));
  const std::vector<std::string> texts = {"",
                                          "The licence says: don't, won't 123 <s> </s>",
                                          "cafe\u0301 \U0001f600\u200d\U0001f525  \t\n\u4e00\u4e8c",
                                          std::string(500, 'a') + "!",
                                          std::string(300, ' ') + "x",
                                          valid_utf8("\xff\xfe broken")};

  int64_t refused = 0, worked = 0;
  for (int64_t i = 0; i < count; ++i) {
    ::alarm(60);  // a hang ends the program too
    const auto& file = corruptor.pick(files);
    auto bytes = fuzz::read(file);
    for (auto n = 1 + corruptor.below(3); n > 0; --n) {
      file.extension() == ".json" ? corruptor.text(bytes, 0, bytes.size()) : corruptor.bytes(bytes);
    }
    if (corruptor.below(20) == 0) bytes.resize(corruptor.below(static_cast<int64_t>(bytes.size())));
    fs::remove_all(work);
    fs::create_directories(work);
    fuzz::write(work / file.filename(), bytes);
    try {
      const auto tokenizer = open_tokenizer(work.string());
      for (const auto& text : texts) {
        auto ids = tokenizer->encode(text, true);
        if (tokenizer->pieces(text, true).size() != ids.size()) {
          std::fprintf(stderr, "corruption %ld: as many pieces as ids were expected\n", static_cast<long>(i));
          return 1;
        }
        ids.insert(ids.end(), {-1, 0, tokenizer->size(), int64_t{1} << 40});
        tokenizer->decode(ids, corruptor.below(2));
      }
      ++worked;
    } catch (const Error&) {
      ++refused;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "corruption %ld: another exception than ours: %s\n", static_cast<long>(i), e.what());
      return 1;
    }
    if ((i + 1) % 1000 == 0) std::fprintf(stderr, "%ld of %ld\n", static_cast<long>(i + 1), static_cast<long>(count));
  }
  std::printf("%ld corruptions of a tokenizer: %ld refused, %ld worked, 0 crashes\n", static_cast<long>(count),
              static_cast<long>(refused), static_cast<long>(worked));
  return 0;
}
