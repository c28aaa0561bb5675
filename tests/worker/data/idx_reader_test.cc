#include <sys/stat.h>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/idx_files.h"
#include "worker/data/dataset.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;

/// Like a digit: mostly background, so that it packs well, and one run of ink.
Bytes some_values(size_t count, uint64_t seed) {
  Random random(seed);
  Bytes values(count, 0);
  for (size_t i = count / 3; i < count / 2; ++i) values[i] = static_cast<uint8_t>(random.below(256));
  return values;
}

class IdxReader : public ::testing::Test {
 protected:
  absl::StatusOr<IdxArray> read(const Bytes& bytes) { return read_idx(folder_.write("file", bytes)); }

  void expect_data_loss(const Bytes& bytes, const std::string& why) {
    const absl::StatusOr<IdxArray> array = read(bytes);
    ASSERT_EQ(array.status().code(), absl::StatusCode::kDataLoss) << why;
    EXPECT_THAT(std::string(array.status().message()), HasSubstr(folder_.path() + "/file"));
    EXPECT_THAT(std::string(array.status().message()), HasSubstr(why));
  }

  TemporaryFolder folder_;
};

TEST_F(IdxReader, ReadsPlainAndPacked) {
  const Bytes values = some_values(3 * 4 * 5, 1);
  const Bytes plain = idx_bytes({3, 4, 5}, values);
  for (const Bytes& bytes : {plain, gzip_bytes(plain)}) {
    const absl::StatusOr<IdxArray> array = read(bytes);
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->shape, (std::vector<uint32_t>{3, 4, 5}));
    EXPECT_EQ(array->values, values);
  }
}

TEST_F(IdxReader, ReadsSeveralGzipMembersAsOne) {
  const Bytes values = some_values(300, 2);
  const Bytes plain = idx_bytes({300}, values);
  for (const size_t cut : {size_t{2}, size_t{8}, size_t{100}}) {
    Bytes packed = gzip_bytes({plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(cut)});
    const Bytes second = gzip_bytes({plain.begin() + static_cast<std::ptrdiff_t>(cut), plain.end()});
    packed.insert(packed.end(), second.begin(), second.end());
    const absl::StatusOr<IdxArray> array = read(packed);
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->values, values);
  }
}

TEST_F(IdxReader, ReadsAnEmptyArray) {
  const absl::StatusOr<IdxArray> array = read(idx_bytes({0, 28, 28}, {}));
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_TRUE(array->values.empty());
}

TEST_F(IdxReader, OnlyAFileIsRead) {
  EXPECT_EQ(read_idx(folder_.path() + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(read_idx(folder_.path()).status().code(), absl::StatusCode::kInvalidArgument);
  const std::string pipe = folder_.path() + "/pipe";  // a read waited for its writer
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(read_idx(pipe).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(IdxReader, TruncationAnywhereIsAnError) {
  const Bytes plain = idx_bytes({12, 10}, some_values(120, 3));
  for (const Bytes& whole : {plain, gzip_bytes(plain)}) {
    for (size_t length = 0; length < whole.size(); ++length) {
      SCOPED_TRACE(length);
      expect_data_loss({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)}, "");
    }
  }
}

TEST_F(IdxReader, TruncationIsNamed) {
  Bytes plain = idx_bytes({12, 10}, some_values(120, 3));
  Bytes packed = gzip_bytes(plain);
  plain.pop_back();
  expect_data_loss(plain, "truncated");
  packed.resize(packed.size() - 2);
  expect_data_loss(packed, "the file ends within its compressed data");
  packed.resize(packed.size() / 2);
  expect_data_loss(packed, "the file ends within its compressed data");
}

TEST_F(IdxReader, BytesAfterTheEndAreAnError) {
  Bytes plain = idx_bytes({12, 10}, some_values(120, 4));
  Bytes garbage_behind = gzip_bytes(plain);
  garbage_behind.insert(garbage_behind.end(), {1, 2, 3});
  plain.push_back(7);
  expect_data_loss(plain, "bytes after the end");
  expect_data_loss(gzip_bytes(plain), "bytes after the end");
  expect_data_loss(garbage_behind, "damaged compressed data");
}

TEST_F(IdxReader, OtherFilesAreNotIdx) {
  expect_data_loss({}, "not an IDX file");
  expect_data_loss({0x89, 'P', 'N', 'G'}, "not an IDX file: wrong magic");
  expect_data_loss(gzip_bytes({'h', 'e', 'l', 'l', 'o'}), "not an IDX file: wrong magic");
  expect_data_loss(idx_bytes({2}, {0, 0, 0, 0, 0, 0, 0, 0}, 0x0d), "type 0x0d");
  expect_data_loss({0, 0, 8, 0}, "no dimensions");
}

TEST_F(IdxReader, ClaimsBeyondTheFileAreRefusedBeforeMemoryIsTaken) {
  expect_data_loss(idx_bytes({0xffffffff, 0xffffffff, 0xffffffff}, {1, 2, 3}), "overflow");
  expect_data_loss(idx_bytes({0xffffffff, 0xffffffff}, {1, 2, 3}), "and holds at most");
  expect_data_loss(gzip_bytes(idx_bytes({0xffffffff, 0xff}, {1, 2, 3})), "and holds at most");
}

TEST_F(IdxReader, DamagedChecksumIsAnError) {
  Bytes packed = gzip_bytes(idx_bytes({12, 10}, some_values(120, 5)));
  packed[packed.size() - 8] ^= 1;
  expect_data_loss(packed, "damaged compressed data");
}

TEST_F(IdxReader, NoFlippedBitGoesUnnoticed) {
  const Bytes values = some_values(30 * 30, 6);
  const Bytes whole = gzip_bytes(idx_bytes({30, 30}, values));
  size_t refused = 0;
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    Bytes flipped = whole;
    flipped[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    const absl::StatusOr<IdxArray> array = read(flipped);
    // Some bits mean nothing: gzip's time stamp, for example.
    if (array.ok()) {
      ASSERT_EQ(array->shape, (std::vector<uint32_t>{30, 30})) << "bit " << bit;
      ASSERT_EQ(array->values, values) << "bit " << bit;
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, whole.size() * 7);
}

}  // namespace
}  // namespace gradrail::worker
