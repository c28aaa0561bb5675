#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/random.h"

namespace gradrail {
namespace {

// The definition, one bit at a time.
uint32_t reference(const unsigned char* data, size_t bytes, uint32_t crc = 0) {
  crc = ~crc;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

using Function = uint32_t (*)(const void*, size_t, uint32_t);

std::vector<Function> paths() {
  std::vector<Function> all = {&crc32c, &crc32c_portable};
  if (has_crc32c_hardware()) all.push_back(&crc32c_hardware);
  return all;
}

std::vector<unsigned char> seeded_bytes(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<unsigned char> bytes(count);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random.below(256));
  return bytes;
}

// RFC 3720, appendix B.4.
TEST(Crc32c, vectors_of_the_rfc) {
  std::vector<unsigned char> up(32), down(32);
  for (size_t i = 0; i < 32; ++i) {
    up[i] = static_cast<unsigned char>(i);
    down[31 - i] = static_cast<unsigned char>(i);
  }
  const unsigned char scsi_read[48] = {0x01, 0xc0, 0,    0,    0,    0, 0, 0, 0,    0, 0, 0, 0,    0,
                                       0,    0,    0x14, 0,    0,    0, 0, 0, 0x04, 0, 0, 0, 0,    0x14,
                                       0,    0,    0,    0x18, 0x28, 0, 0, 0, 0,    0, 0, 0, 0x02, 0};
  for (const Function path : paths()) {
    EXPECT_EQ(path(std::vector<unsigned char>(32, 0).data(), 32, 0), 0x8a9136aau);
    EXPECT_EQ(path(std::vector<unsigned char>(32, 255).data(), 32, 0), 0x62a8ab43u);
    EXPECT_EQ(path(up.data(), 32, 0), 0x46dd794eu);
    EXPECT_EQ(path(down.data(), 32, 0), 0x113fdb5cu);
    EXPECT_EQ(path(scsi_read, 48, 0), 0xd9963a56u);
    EXPECT_EQ(path("123456789", 9, 0), 0xe3069283u);
    EXPECT_EQ(path("", 0, 0), 0u);
  }
}

TEST(Crc32c, all_short_lengths_at_all_alignments) {
  constexpr uint64_t kSeed = 1;
  const std::vector<unsigned char> bytes = seeded_bytes(300 + 8, kSeed);
  for (size_t offset = 0; offset < 8; ++offset) {
    for (size_t length = 0; length <= 300; ++length) {
      const uint32_t expected = reference(bytes.data() + offset, length);
      for (const Function path : paths()) {
        ASSERT_EQ(path(bytes.data() + offset, length, 0), expected) << offset << " " << length << " seed " << kSeed;
      }
    }
  }
}

// Around the lengths where the three-stream loops begin, end and hand over to each other.
TEST(Crc32c, long_runs) {
  constexpr uint64_t kSeed = 2;
  const std::vector<unsigned char> bytes = seeded_bytes(80'000, kSeed);
  for (const size_t middle : {768, 1536, 4096, 12'288, 13'056, 24'576, 65'536, 79'000}) {
    for (size_t length = middle - 9; length <= middle + 9; ++length) {
      const uint32_t expected = reference(bytes.data() + 3, length);
      for (const Function path : paths()) {
        ASSERT_EQ(path(bytes.data() + 3, length, 0), expected) << length << " seed " << kSeed;
      }
    }
  }
}

TEST(Crc32c, continues_an_earlier_sum) {
  constexpr uint64_t kSeed = 3;
  const std::vector<unsigned char> bytes = seeded_bytes(20'000, kSeed);
  const uint32_t whole = reference(bytes.data(), bytes.size());
  for (const size_t cut : {0, 1, 7, 800, 12'288, 19'999, 20'000}) {
    for (const Function path : paths()) {
      EXPECT_EQ(path(bytes.data() + cut, bytes.size() - cut, path(bytes.data(), cut, 0)), whole) << cut;
    }
  }
}

}  // namespace
}  // namespace gradrail
