// Strict reading of safetensors files: every abuse has its own message, and nothing is trusted before it is checked.
#include <gtest/gtest.h>

#include <ctime>

#include "core/error.h"
#include "core/sha256.h"
#include "files.h"
#include "io/safetensors.h"

namespace lockstep {
namespace {

using testing::expect_contains;
using testing::message_of;
using testing::safetensors;
using testing::TemporaryFolder;
using testing::with_length;
using testing::write_file;

std::string refusal(const std::string& bytes) {
  TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  write_file(path, bytes);
  auto message = message_of<LoadError>([&] { SafetensorsFile::open(path); });
  expect_contains(message, path);
  return message;
}

const std::string kTwo =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})";

TEST(Safetensors, ReadsWhatIsRight) {
  TemporaryFolder folder;
  const auto path = folder / "a b.safetensors";
  const float values[] = {1.5f, -2.0f, 3.25f};
  write_file(path, safetensors(kTwo, std::string(reinterpret_cast<const char*>(values), 12)));
  const auto file = SafetensorsFile::open(path);
  EXPECT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensor("a")[1].item<float>(), -2.0f);
  EXPECT_EQ(file.tensor("b")[0].item<float>(), 3.25f);
}

TEST(Safetensors, TensorOutlivesTheFileObject) {
  TemporaryFolder folder;
  const auto path = folder / "x";
  const float values[] = {1.5f, -2.0f, 3.25f};
  write_file(path, safetensors(kTwo, std::string(reinterpret_cast<const char*>(values), 12)));
  at::Tensor kept;
  {
    const auto file = SafetensorsFile::open(path);
    kept = file.tensor("a");
  }
  EXPECT_EQ(kept[0].item<float>(), 1.5f);
}

TEST(Safetensors, ReadsOddAddresses) {
  // A header of odd length puts F32 data at 4k + 1 or so, and BF16 at an odd byte.
  for (int pad = 0; pad < 9; ++pad) {
    TemporaryFolder folder;
    const auto path = folder / "x";
    const std::string header =
        R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"h":{"dtype":"BF16","shape":[2],"data_offsets":[12,16]}})" +
        std::string(pad, ' ');
    const float values[] = {1.0f, 2.0f, 3.0f};
    const uint16_t halves[] = {0x3f80, 0x4000};
    write_file(path, safetensors(header, std::string(reinterpret_cast<const char*>(values), 12) +
                                             std::string(reinterpret_cast<const char*>(halves), 4)));
    const auto file = SafetensorsFile::open(path);
    EXPECT_EQ(file.tensor("w").sum().item<float>(), 6.0f) << pad;
    EXPECT_EQ(file.tensor("h")[1].item<float>(), 2.0f) << pad;
  }
}

TEST(Safetensors, OutOfOrderHeaderIsFine) {
  TemporaryFolder folder;
  const auto path = folder / "x";
  write_file(
      path,
      safetensors(
          R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
          std::string("\x05\x07", 2)));
  EXPECT_EQ(SafetensorsFile::open(path).tensor("b")[0].item<int>(), 7);
}

TEST(Safetensors, RefusesWrongHeaderLengths) {
  const std::string rest(100, ' ');
  expect_contains(refusal(with_length(uint64_t{1} << 63, rest)), "header too large: 9223372036854775808 bytes");
  expect_contains(refusal(with_length(~uint64_t{0}, rest)), "header too large: 18446744073709551615 bytes");
  expect_contains(refusal(with_length(~uint64_t{0} - 4, rest)), "header too large: 18446744073709551611 bytes");
  expect_contains(refusal(with_length(100'000'001, rest)), "header too large: 100000001 bytes (limit 100000000)");
  expect_contains(refusal(with_length(101, rest)), "header of 101 bytes, but only 100 bytes follow");
  expect_contains(refusal(with_length(0, rest)), "does not begin with '{'");
  expect_contains(refusal(std::string(7, '\0')), "7 bytes, too short");
  expect_contains(refusal(""), "0 bytes, too short");
}

TEST(Safetensors, KnowsAnLfsPointer) {
  expect_contains(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"),
                  "looks like a Git LFS pointer of 64 bytes, expected a safetensors file; run git lfs pull");
}

TEST(Safetensors, RefusesOverlapsAndHoles) {
  auto two = [](int a0, int a1, int b0, int b1) {
    return R"({"k":{"dtype":"U8","shape":[)" + std::to_string(a1 - a0) + R"(],"data_offsets":[)" + std::to_string(a0) +
           "," + std::to_string(a1) + R"(]},"v":{"dtype":"U8","shape":[)" + std::to_string(b1 - b0) +
           R"(],"data_offsets":[)" + std::to_string(b0) + "," + std::to_string(b1) + "]}}";
  };
  expect_contains(refusal(safetensors(two(0, 8, 0, 8), std::string(8, 'x'))),
                  "tensors k and v overlap: bytes [0, 8) and [0, 8)");
  expect_contains(refusal(safetensors(two(0, 8, 7, 15), std::string(15, 'x'))),
                  "tensors k and v overlap: bytes [0, 8) and [7, 15)");
  expect_contains(refusal(safetensors(two(0, 8, 12, 20), std::string(20, 'x'))),
                  "bytes [8, 12) before tensor v belong to no tensor");
  expect_contains(refusal(safetensors(two(0, 8, 8, 16), std::string(20, 'x'))), "the last 4 bytes belong to no tensor");
}

TEST(Safetensors, RefusesDuplicateNames) {
  const std::string same = R"("dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const std::string other = R"("dtype":"F32","shape":[1],"data_offsets":[4,8]})";
  const std::string payload(8, 'x');
  expect_contains(refusal(safetensors(R"({"x":{)" + same + R"(,"x":{)" + same + "}", payload)), "duplicate key \"x\"");
  expect_contains(refusal(safetensors(R"({"x":{)" + same + R"(,"x":{)" + other + "}", payload)), "duplicate key \"x\"");
  expect_contains(refusal(safetensors(R"({"x":{)" + same + R"(,"\u0078":{)" + other + "}", payload)),
                  "duplicate key \"x\"");
  expect_contains(refusal(safetensors(R"({"__metadata__":{},"__metadata__":{},"x":{)" + same + "}", payload)),
                  "duplicate key \"__metadata__\"");
}

TEST(Safetensors, RefusesTruncation) {
  const std::string whole = safetensors(kTwo, std::string(12, 'x'));
  for (size_t lost : {1, 4, 11}) {
    expect_contains(refusal(whole.substr(0, whole.size() - lost)),
                    "needs " + std::to_string(whole.size()) + " bytes, has " + std::to_string(whole.size() - lost));
  }
}

TEST(Safetensors, RefusesBadEntries) {
  auto entry = [](const std::string& body) { return safetensors("{\"x\":{" + body + "}}", std::string(4, 'x')); };
  expect_contains(refusal(entry(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])")),
                  "tensor x: unknown dtype \"F33\"");
  expect_contains(refusal(entry(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])")), "expected sizes from 0");
  expect_contains(refusal(entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])")), "run backwards");
  expect_contains(refusal(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])")), "expected 8 bytes for [2] F32");
  expect_contains(refusal(entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])")),
                  "overflows 64 bits");
  expect_contains(refusal(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0])")),
                  "expected data_offsets [begin, end]");
  expect_contains(refusal(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":1)")),
                  "unknown header key \"extra\"");
  expect_contains(refusal(safetensors("[1]", "")), "does not begin with '{'");
  expect_contains(refusal(safetensors("{\"a\":", "")), "not valid JSON");
  expect_contains(refusal(safetensors("{\"__metadata__\":{\"format\":1}}", "")),
                  "__metadata__ key \"format\" is not a string");
}

TEST(Safetensors, SeesThatAFileChanged) {
  TemporaryFolder folder;
  const auto path = folder / "x";
  write_file(path, safetensors(kTwo, std::string(12, 'x')));
  const auto file = SafetensorsFile::open(path);
  file.check_unchanged();
  write_file(path, safetensors(kTwo, std::string(13, 'x')));
  expect_contains(message_of<LoadError>([&] { file.check_unchanged(); }), "changed while it was in use");
}

TEST(Safetensors, AFileCutShortWhileMappedIsRefusedNotASignal) {
  TemporaryFolder folder;
  const auto path = folder / "x";
  const int64_t n = 100'000;
  const std::string header = R"({"w":{"dtype":"F32","shape":[100000],"data_offsets":[0,400000]}})";
  write_file(path, safetensors(header, std::string(4 * n, 'x')));
  const auto file = SafetensorsFile::open(path);
  const auto tensor = file.tensor("w");
  std::filesystem::resize_file(path, 5000);
  EXPECT_NE(tensor.sum().item<float>(), 0.0f);  // read to the end, past the new one
  expect_contains(message_of<LoadError>([&] { file.check_unchanged(); }), "changed while it was in use");
}

TEST(Sha256Each, IsEachRangesOwnUntilItIsGivenUp) {
  const std::string empty, abc = "abc", longer(size_t{40} << 20, 'x');  // more than a block
  const std::vector<std::pair<const void*, size_t>> ranges = {
      {empty.data(), 0}, {longer.data(), longer.size()}, {abc.data(), abc.size()}};
  const auto found = sha256_each(ranges);
  EXPECT_EQ(found[0], "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(found[2], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 sha;
  sha.update(longer);
  EXPECT_EQ(found[1], sha.hex());
  const std::atomic<bool> given_up{true};
  EXPECT_EQ(sha256_each(ranges, &given_up)[1], "");
}

}  // namespace
}  // namespace lockstep
