#include "bench/layers/gunzip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/worker/data/idx_files.h"

namespace gradrail::bench {
namespace {

constexpr size_t kMostBytes = 8 << 20;

std::string gzip(const std::string& text) {
  const worker::Bytes packed = worker::gzip_bytes({text.begin(), text.end()});
  return {packed.begin(), packed.end()};
}

TEST(Gunzip, ReturnsTheTextOfAllMembers) {
  // The second one is larger than a piece of the output.
  const std::string first = "fc 4 1\n", second(3 << 20, 'x');
  EXPECT_EQ(gunzip(gzip(first) + gzip("") + gzip(second), kMostBytes).value(), first + second);
}

TEST(Gunzip, RefusesDamageAtEachByte) {
  const std::string whole = gzip("fc 4 1\nfc2 4 2\n");
  constexpr size_t kHeaderBytes = 10;  // of them, only the mark, the method and the flags are checked
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_TRUE(absl::IsDataLoss(gunzip(whole.substr(0, i), kMostBytes).status())) << i;
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0xff);
    if (i < 4 || i >= kHeaderBytes) {
      EXPECT_TRUE(absl::IsDataLoss(gunzip(damaged, kMostBytes).status())) << i;
    }
  }
  EXPECT_TRUE(absl::IsDataLoss(gunzip(whole + "\n", kMostBytes).status()));
}

TEST(Gunzip, RefusesMoreThanTheBound) {
  const std::string packed = gzip(std::string(kMostBytes + 1, 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted(gunzip(packed, kMostBytes).status()));
  EXPECT_TRUE(gunzip(packed, kMostBytes + 1).ok());
}

}  // namespace
}  // namespace gradrail::bench
