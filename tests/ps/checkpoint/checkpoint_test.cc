#include "ps/checkpoint/checkpoint.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/crc32c.h"
#include "gmock/gmock.h"
#include "ps/checkpoint/header.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace {

std::atomic<bool> disk_is_full = false;

}  // namespace

// This function replaces that of libc in this program.
extern "C" ssize_t write(int fd, const void* data, size_t bytes) {
  if (!disk_is_full) return syscall(SYS_write, fd, data, bytes);
  errno = ENOSPC;
  return -1;
}

namespace gradrail::ps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr OptimizerKind kAllKinds[] = {
    OptimizerKind::sgd,   OptimizerKind::momentum,   OptimizerKind::nesterov,        OptimizerKind::adam,
    OptimizerKind::adamw, OptimizerKind::torch_adam, OptimizerKind::delayed_nesterov};
constexpr size_t kPrologueBytes = 24;
constexpr size_t kChunkElements = (size_t{1} << 20) / sizeof(float);

/// Returns the status of reading a file with these bytes.
absl::Status read_back(const TemporaryFolder& folder, const std::string& bytes) {
  write_bytes(folder.file("altered"), bytes);
  return read_checkpoint(folder.file("altered")).status();
}

std::string message(const absl::Status& status) { return std::string(status.message()); }

/// Bytes of a small file with every field in use.
std::string small_file(const TemporaryFolder& folder) {
  const Checkpoint checkpoint = make_checkpoint(OptimizerKind::momentum, {16, 5}, 33, 1);
  EXPECT_TRUE(write_checkpoint(folder.file("small"), view(checkpoint)).ok());
  return read_bytes(folder.file("small"));
}

TEST(Checkpoint, RoundTrips) {
  const TemporaryFolder folder(std::filesystem::temp_directory_path().string());  // most often a real disk
  for (const OptimizerKind kind : kAllKinds) {
    for (const uint64_t count : {0ul, 1ul, 17ul, 1000ul, kChunkElements - 1, kChunkElements, kChunkElements + 1}) {
      const Checkpoint written = make_checkpoint(kind, {16, count}, count + 40, count);
      ASSERT_TRUE(write_checkpoint(folder.file("c"), view(written)).ok());
      const absl::StatusOr<Checkpoint> read = read_checkpoint(folder.file("c"));
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_TRUE(same(*read, written)) << optimizer_name(kind) << ' ' << count;
      EXPECT_FALSE(std::filesystem::exists(folder.file("c.tmp")));
    }
  }
}

TEST(Checkpoint, KeepsNumbersThatAreNone) {
  const TemporaryFolder folder;
  Checkpoint written = make_checkpoint(OptimizerKind::sgd, {0, 4}, 4, 1);
  const uint32_t bits[] = {0x7fc12345, 0xff800000, 0x80000000, 0x00000001};
  std::memcpy(written.parameters.data(), bits, sizeof(bits));
  ASSERT_TRUE(write_checkpoint(folder.file("c"), view(written)).ok());
  const absl::StatusOr<Checkpoint> read = read_checkpoint(folder.file("c"));
  ASSERT_TRUE(read.ok()) << read.status();
  // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): the bits of NaN and -0 are the test
  EXPECT_EQ(std::memcmp(read->parameters.data(), bits, sizeof(bits)), 0);
}

TEST(Checkpoint, RefusesToWriteWhatContradictsItself) {
  const TemporaryFolder folder;
  const auto refused = [&](auto change) {
    Checkpoint checkpoint = make_checkpoint(OptimizerKind::adam, {0, 8}, 8, 1);
    change(checkpoint);
    const absl::Status status = write_checkpoint(folder.file("c"), view(checkpoint));
    return status.code() == absl::StatusCode::kInvalidArgument && !std::filesystem::exists(folder.file("c"));
  };
  EXPECT_TRUE(refused([](Checkpoint& c) { c.parameters.pop_back(); }));
  EXPECT_TRUE(refused([](Checkpoint& c) { c.state.pop_back(); }));
  EXPECT_TRUE(refused([](Checkpoint& c) { c.state[1].pop_back(); }));
  EXPECT_TRUE(refused([](Checkpoint& c) { c.header.schema.clear(); }));
  EXPECT_TRUE(refused([](Checkpoint& c) { c.header.shard_index = 1; }));
  EXPECT_TRUE(refused([](Checkpoint& c) { c.header.range.first = 1; }));
}

TEST(Checkpoint, EveryTruncationIsFound) {
  const TemporaryFolder folder;
  const std::string whole = small_file(folder);
  for (size_t length = 0; length < whole.size(); ++length) {
    const absl::Status status = read_back(folder, whole.substr(0, length));
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << length << ": " << status;
    ASSERT_THAT(message(status), AllOf(HasSubstr(folder.file("altered")), HasSubstr("truncated"))) << length;
  }
}

TEST(Checkpoint, EveryBitFlipIsFound) {
  const TemporaryFolder folder;
  const std::string whole = small_file(folder);
  ASSERT_TRUE(read_back(folder, whole).ok());
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string altered = whole;
    altered[bit / 8] = static_cast<char>(altered[bit / 8] ^ (1 << bit % 8));
    const absl::Status status = read_back(folder, altered);
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << "bit " << bit << ": " << status;
    ASSERT_THAT(message(status), HasSubstr(folder.file("altered")));
  }
}

TEST(Checkpoint, AppendedBytesAreFound) {
  const TemporaryFolder folder;
  const std::string whole = small_file(folder);
  EXPECT_THAT(message(read_back(folder, whole + std::string(1, '\0'))), HasSubstr("1 bytes follow its end"));
  EXPECT_THAT(message(read_back(folder, whole + whole)), HasSubstr("follow its end"));
}

TEST(Checkpoint, DamageIsPlaced) {
  const TemporaryFolder folder;
  const Checkpoint written =
      make_checkpoint(OptimizerKind::adam, {0, 2 * kChunkElements + 7}, 2 * kChunkElements + 7, 1);
  ASSERT_TRUE(write_checkpoint(folder.file("c"), view(written)).ok());
  const std::string whole = read_bytes(folder.file("c"));
  const size_t vector_bytes = written.parameters.size() * sizeof(float) + 3 * sizeof(uint32_t);
  const size_t data = whole.size() - 3 * vector_bytes;
  const auto damaged_at = [&](size_t offset) {
    std::string altered = whole;
    altered[offset] = static_cast<char>(~altered[offset]);
    return message(read_back(folder, altered));
  };
  EXPECT_THAT(damaged_at(0), HasSubstr("not a gradrail checkpoint"));
  EXPECT_THAT(damaged_at(8), HasSubstr("format version"));
  EXPECT_THAT(damaged_at(40), HasSubstr("header (bytes 0 to"));
  EXPECT_THAT(damaged_at(data), HasSubstr("chunk 0 of 9 (parameters, elements 0 to 262144): CRC32C is"));
  EXPECT_THAT(damaged_at(data + vector_bytes - 1), HasSubstr("chunk 2 of 9 (parameters, elements 524288 to 524295)"));
  EXPECT_THAT(damaged_at(data + vector_bytes + (1 << 20) + 4), HasSubstr("chunk 4 of 9 (state 0, elements 262144"));
  EXPECT_THAT(damaged_at(whole.size() - 1), HasSubstr("chunk 8 of 9 (state 1"));
}

TEST(Checkpoint, AnotherFormatIsRefusedWithBothVersions) {
  const TemporaryFolder folder;
  std::string bytes = small_file(folder);
  for (const uint32_t version : {5u, 7u}) {
    std::memcpy(bytes.data() + 8, &version, sizeof(version));
    EXPECT_THAT(message(read_back(folder, bytes)),
                HasSubstr("altered: format version " + std::to_string(version) + " where this program reads 6 (use"));
  }
}

TEST(Checkpoint, ChunksFitTheirPlaceOnly) {
  const TemporaryFolder folder;
  const Checkpoint written = make_checkpoint(OptimizerKind::sgd, {0, 2 * kChunkElements}, 2 * kChunkElements, 1);
  ASSERT_TRUE(write_checkpoint(folder.file("c"), view(written)).ok());
  std::string bytes = read_bytes(folder.file("c"));
  const size_t chunk_bytes = (1 << 20) + 4;
  const size_t data = bytes.size() - 2 * chunk_bytes;
  std::swap_ranges(bytes.begin() + data, bytes.begin() + data + chunk_bytes, bytes.begin() + data + chunk_bytes);
  EXPECT_THAT(message(read_back(folder, bytes)), HasSubstr("chunk 0 of 2"));
}

/// Header fields and their CRC are right, what they say is not.
class LyingHeader {
 public:
  explicit LyingHeader(const TemporaryFolder& folder) : folder_(folder), bytes_(small_file(folder)) {}

  template <typename Integer>
  absl::Status with(size_t offset, Integer value) const {
    std::string altered = bytes_;
    std::memcpy(altered.data() + offset, &value, sizeof(value));
    uint32_t field_bytes = 0;
    std::memcpy(&field_bytes, bytes_.data() + 12, sizeof(field_bytes));
    const size_t crc_offset = kPrologueBytes + field_bytes;
    const uint32_t crc = crc32c(altered.data(), crc_offset);
    std::memcpy(altered.data() + crc_offset, &crc, sizeof(crc));
    return read_back(folder_, altered);
  }

 private:
  const TemporaryFolder& folder_;
  std::string bytes_;
};

TEST(Checkpoint, HeadersThatLieAreFoundBeforeMemoryIsSpent) {
  const TemporaryFolder folder;
  const LyingHeader header(folder);
  // Offsets as drawn in checkpoint.cc: optimizer 25 bytes, range 16, step, time and run 24, shard 12, then the schema.
  constexpr size_t kKind = kPrologueBytes;
  constexpr size_t kRange = kKind + 25;
  constexpr size_t kShard = kRange + 40;
  constexpr size_t kTensors = kShard + 12;
  EXPECT_TRUE(header.with<uint8_t>(kKind, 1).ok()) << "what it held: the tool itself works";
  for (const absl::Status& status : {
           header.with<uint8_t>(kKind, 200), header.with<uint8_t>(kKind, 3),  // adam: twice the state
           header.with<uint64_t>(kRange, ~uint64_t{0}),                       // overflows with the count
           header.with<uint64_t>(kRange + 8, uint64_t{1} << 62),              // × 4 bytes overflows to nothing
           header.with<uint64_t>(kRange + 8, 6), header.with<uint32_t>(kShard, 9),
           header.with<uint32_t>(kTensors, 0xffffffff), header.with<uint32_t>(kTensors, 1),
           header.with<uint32_t>(kTensors + 4, 0xffffffff),       // first tensor's name
           header.with<uint32_t>(kTensors + 8 + 12, 0x20000001),  // its rank: × 8 bytes is 8 in 32 bits
           header.with<int64_t>(kTensors + 8 + 16, -1),           // its first dimension
           header.with<int64_t>(kTensors + 8 + 16, INT64_MAX), header.with<uint64_t>(16, 1),  // bytes of the file
       }) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(message(status), AllOf(HasSubstr(folder.file("altered")), Not(HasSubstr("CRC"))));
  }
}

TEST(Checkpoint, HeaderAloneRefusesTornFields) {
  const std::string fields = encode_header(make_checkpoint(OptimizerKind::adam, {0, 8}, 8, 1).header);
  ASSERT_TRUE(decode_header(fields).ok());
  for (size_t length = 0; length < fields.size(); ++length) {
    EXPECT_FALSE(decode_header(fields.substr(0, length)).ok()) << length;
  }
  EXPECT_FALSE(decode_header(fields + '\0').ok());
}

TEST(Checkpoint, MissingAndStrangeFilesAreNamed) {
  const TemporaryFolder folder;
  const absl::Status missing = read_checkpoint(folder.file("none")).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message(missing), AllOf(HasSubstr(folder.file("none")), HasSubstr("No such file")));
  EXPECT_THAT(message(read_checkpoint(folder.path()).status()), HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo(folder.file("fifo").c_str(), 0600), 0);
  EXPECT_THAT(message(read_checkpoint(folder.file("fifo")).status()), HasSubstr("not a regular file"));
  EXPECT_THAT(message(read_back(folder, std::string(100, 'x'))), HasSubstr("not a gradrail checkpoint"));
}

TEST(Checkpoint, WriteErrorsSayWhereAndWhy) {
  const TemporaryFolder folder;
  const Checkpoint checkpoint = make_checkpoint(OptimizerKind::sgd, {0, 8}, 8, 1);
  const absl::Status no_folder = write_checkpoint(folder.file("no/c"), view(checkpoint));
  EXPECT_EQ(no_folder.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message(no_folder), AllOf(HasSubstr(folder.file("no/c.tmp")), HasSubstr("No such file")));

  std::filesystem::create_directory(folder.file("taken"));
  EXPECT_THAT(message(write_checkpoint(folder.file("taken"), view(checkpoint))),
              HasSubstr(folder.file("taken") + ": is a folder, not a regular file"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("taken.tmp")));
}

TEST(Checkpoint, UnwritableFolder) {
  const TemporaryFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0555), 0);
  const Checkpoint checkpoint = make_checkpoint(OptimizerKind::sgd, {0, 8}, 8, 1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kUnprivileged = 65534;  // root may write everywhere
    if (geteuid() == 0 && seteuid(kUnprivileged) != 0) _exit(2);
    const absl::Status status = write_checkpoint(folder.file("c"), view(checkpoint));
    _exit(absl::IsPermissionDenied(status) && message(status).find(folder.file("c.tmp")) != std::string::npos ? 0 : 1);
  }
  int wait_status = 0;
  ASSERT_EQ(waitpid(child, &wait_status, 0), child);
  EXPECT_EQ(wait_status, 0);
}

TEST(Checkpoint, FullDiskLeavesTheOldFile) {
  const TemporaryFolder folder;
  const Checkpoint old = make_checkpoint(OptimizerKind::sgd, {0, 8}, 8, 1);
  ASSERT_TRUE(write_checkpoint(folder.file("c"), view(old)).ok());
  disk_is_full = true;
  const absl::Status status =
      write_checkpoint(folder.file("c"), view(make_checkpoint(OptimizerKind::sgd, {0, 8}, 8, 2)));
  disk_is_full = false;
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(message(status), AllOf(HasSubstr(folder.file("c.tmp")), HasSubstr("No space left")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("c.tmp")));
  EXPECT_TRUE(same(read_checkpoint(folder.file("c")).value(), old));
}

TEST(Checkpoint, FileSizeLimitLeavesTheOldFile) {
  const TemporaryFolder folder;
  const Checkpoint old = make_checkpoint(OptimizerKind::sgd, {0, 8}, 8, 1);
  ASSERT_TRUE(write_checkpoint(folder.file("c"), view(old)).ok());
  const pid_t child = fork();  // the limit would outlive the test
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {.rlim_cur = 1000, .rlim_max = 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto status = write_checkpoint(folder.file("c"), view(make_checkpoint(OptimizerKind::sgd, {0, 999}, 999, 2)));
    _exit(absl::IsResourceExhausted(status) && message(status).find("ulimit -f") != std::string::npos ? 0 : 1);
  }
  int wait_status = 0;
  ASSERT_EQ(waitpid(child, &wait_status, 0), child);
  EXPECT_EQ(wait_status, 0);
  EXPECT_TRUE(same(read_checkpoint(folder.file("c")).value(), old));
  EXPECT_FALSE(std::filesystem::exists(folder.file("c.tmp")));
}

}  // namespace
}  // namespace gradrail::ps
