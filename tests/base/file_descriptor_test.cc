#include "base/file_descriptor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "gtest/gtest.h"

namespace gradrail {
namespace {

bool is_descriptor_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(FileDescriptor, ClosesOnceAndKeepsErrno) {
  absl::StatusOr<Pipe> pipe = open_pipe();
  ASSERT_TRUE(pipe.ok());
  const int reader = pipe->reader.get(), writer = pipe->writer.get();
  {
    FileDescriptor first = std::move(pipe->reader);
    EXPECT_FALSE(pipe->reader);
    EXPECT_EQ(first.get(), reader);
    first = std::move(pipe->writer);
    EXPECT_FALSE(is_descriptor_open(reader));
    EXPECT_TRUE(is_descriptor_open(writer));
    errno = ENOENT;
  }
  EXPECT_EQ(errno, ENOENT);
  EXPECT_FALSE(is_descriptor_open(writer));
}

TEST(FileDescriptor, AReleasedDescriptorStaysOpen) {
  absl::StatusOr<Pipe> pipe = open_pipe();
  ASSERT_TRUE(pipe.ok());
  const int fd = pipe->reader.release();
  pipe->reader.reset();
  EXPECT_TRUE(is_descriptor_open(fd));
  close(fd);
}

TEST(FileDescriptor, ReadsUpToTheLimit) {
  const FileDescriptor file(memfd_create("text", MFD_CLOEXEC));
  const std::string text(40'000, 'x');
  ASSERT_TRUE(write_all(file.get(), text));
  const auto read_again = [&](size_t max_bytes) {
    lseek(file.get(), 0, SEEK_SET);
    return read_up_to(file.get(), max_bytes);
  };
  EXPECT_EQ(read_again(100'000), text);
  EXPECT_EQ(read_again(20'000), text.substr(0, 20'000));
  EXPECT_EQ(read_up_to(-1, 1), std::nullopt);
  EXPECT_EQ(errno, EBADF);
  EXPECT_FALSE(write_all(-1, "x"));
}

TEST(OpenFiles, TheLimitFollowsTheNeedUpToTheHardLimit) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low = {.rlim_cur = 64, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_TRUE(allow_open_files(100).ok());
  rlimit raised{};
  getrlimit(RLIMIT_NOFILE, &raised);
  EXPECT_EQ(raised.rlim_cur, 100U);
  EXPECT_TRUE(allow_open_files(80).ok());
  getrlimit(RLIMIT_NOFILE, &raised);
  EXPECT_EQ(raised.rlim_cur, 100U) << "it is never lowered";
  if (before.rlim_max != RLIM_INFINITY) {
    const absl::Status refused = allow_open_files(before.rlim_max + 1);
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_NE(refused.message().find("ulimit -Hn"), std::string::npos) << refused;
  }
  allow_many_open_files();
  getrlimit(RLIMIT_NOFILE, &raised);
  EXPECT_EQ(raised.rlim_cur, std::min<rlim_t>(before.rlim_max, 1 << 20));
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace gradrail
