#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/header.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::ps {
namespace {

constexpr int kRounds = 20'000;  // some seconds with AddressSanitizer
constexpr uint64_t kSeed = 20'240'517;
constexpr size_t kPrologueBytes = 24;

/// Values at which sizes and counts go wrong.
constexpr uint64_t kOddIntegers[] = {0,
                                     1,
                                     0x7f,
                                     0x80,
                                     0xff,
                                     0x7fffffff,
                                     0x80000000,
                                     0xffffffff,
                                     0x3fffffff,
                                     0x40000000,
                                     0x20000001,
                                     uint64_t{1} << 62,
                                     UINT64_MAX,
                                     INT64_MAX,
                                     1u << 20,
                                     UINT64_MAX / 4,
                                     (uint64_t{1} << 38) + 1};

void overwrite(std::string& bytes, size_t offset, uint64_t value, size_t value_bytes) {
  if (offset + value_bytes <= bytes.size()) std::memcpy(bytes.data() + offset, &value, value_bytes);
}

/// One random change; it may turn out to change nothing.
void mutate(std::string& bytes, Random& random) {
  const size_t at = bytes.empty() ? 0 : random.below(bytes.size());
  const size_t run = 1 + random.below(64);
  switch (random.below(8)) {
    case 0:
      if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
      break;
    case 1:
      if (!bytes.empty()) bytes[at] = static_cast<char>(random.next());
      break;
    case 2:
      bytes.resize(at);
      break;
    case 3:
      bytes.erase(at, run);
      break;
    case 4:
      bytes.insert(at, run, static_cast<char>(random.next()));
      break;
    case 5:
      bytes.insert(at, bytes.substr(random.below(bytes.size() + 1), run));
      break;
    case 6:
      overwrite(bytes, at, kOddIntegers[random.below(std::size(kOddIntegers))], size_t{1} << random.below(4));
      break;
    default:
      if (at + 2 * run <= bytes.size()) {
        const auto first = bytes.begin() + static_cast<ptrdiff_t>(at);
        std::swap_ranges(first, first + static_cast<ptrdiff_t>(run), first + static_cast<ptrdiff_t>(run));
      }
  }
}

std::vector<std::string> seeds(const TemporaryFolder& folder) {
  std::vector<std::string> files;
  for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::momentum, OptimizerKind::adam}) {
    for (const uint64_t count : {0, 1, 40}) {
      const Checkpoint checkpoint = make_checkpoint(kind, {16, count}, 64, count);
      EXPECT_TRUE(write_checkpoint(folder.file("seed"), view(checkpoint)).ok());
      files.push_back(read_bytes(folder.file("seed")));
    }
  }
  return files;
}

TEST(CheckpointFuzz, AlteredBytesAreNeverAccepted) {
  const TemporaryFolder folder;
  const std::vector<std::string> files = seeds(folder);
  Random random(kSeed);
  int altered = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::string& whole = files[random.below(files.size())];
    std::string bytes = whole;
    for (uint64_t i = random.below(4) + 1; i > 0; --i) mutate(bytes, random);
    write_bytes(folder.file("altered"), bytes);
    const absl::StatusOr<Checkpoint> read = read_checkpoint(folder.file("altered"));
    ASSERT_EQ(read.ok(), bytes == whole) << "seed " << kSeed << " round " << round << ": " << read.status();
    if (!read.ok()) {
      ASSERT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << "seed " << kSeed << " round " << round;
    }
    altered += bytes != whole ? 1 : 0;
  }
  EXPECT_GT(altered, kRounds * 9 / 10) << "the mutations no longer alter anything";
}

/// As above, with a corrected CRC of the header, which tests the checks behind it. A header may be accepted then. The
/// numbers must be refused: their CRC includes the CRC of the old header.
TEST(CheckpointFuzz, HeadersWithARightCrcNeverCrash) {
  const TemporaryFolder folder;
  const std::vector<std::string> files = seeds(folder);
  Random random(kSeed + 1);
  int refused = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = files[random.below(files.size())];
    uint32_t field_bytes = 0;
    std::memcpy(&field_bytes, bytes.data() + 12, sizeof(field_bytes));
    std::string fields = bytes.substr(kPrologueBytes, field_bytes);
    for (uint64_t i = random.below(3) + 1; i > 0; --i) mutate(fields, random);
    const std::string data = bytes.substr(kPrologueBytes + field_bytes + 4);
    bytes.resize(kPrologueBytes);
    overwrite(bytes, 12, fields.size(), 4);
    overwrite(bytes, 16, kPrologueBytes + fields.size() + 4 + data.size(), 8);
    bytes += fields;
    const uint32_t crc = crc32c(bytes.data(), bytes.size());
    bytes.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
    bytes += data;
    write_bytes(folder.file("altered"), bytes);
    const absl::StatusOr<Checkpoint> read = read_checkpoint(folder.file("altered"));
    if (read.ok()) {
      // Nothing is lost or made up on the way: what was accepted is what the bytes say.
      ASSERT_EQ(encode_header(read->header), fields) << "seed " << kSeed + 1 << " round " << round;
      ASSERT_TRUE(check_header(read->header).ok());
    } else {
      ASSERT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << "seed " << kSeed + 1 << " round " << round;
    }
    refused += read.ok() ? 0 : 1;
  }
  EXPECT_GT(refused, kRounds / 2);
}

}  // namespace
}  // namespace gradrail::ps
