#include "base/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tests/base/forbidden_call.h"

namespace gradrail {
namespace {

SharedMemory create(size_t bytes) {
  auto memory = SharedMemory::create("memory_test", bytes);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

TEST(SharedMemory, is_zeroed_and_writable) {
  const SharedMemory memory = create(100'000);
  ASSERT_EQ(memory.bytes(), 100'000u);
  EXPECT_TRUE(
      std::all_of(memory.data(), memory.data() + memory.bytes(), [](std::byte b) { return b == std::byte{0}; }));
  std::fill_n(memory.data(), memory.bytes(), std::byte{7});
  EXPECT_EQ(memory.data()[memory.bytes() - 1], std::byte{7});
}

TEST(SharedMemory, size_is_sealed) {
  const SharedMemory memory = create(8192);
  const int fd = memory.span().fd;
  EXPECT_EQ(ftruncate(fd, 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd, 16'384), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1) << "the set of seals is sealed too";
}

TEST(SharedMemory, is_not_inherited_by_programs_we_start) {
  const SharedMemory memory = create(1);
  EXPECT_NE(fcntl(memory.span().fd, F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SharedMemory, empty_is_legal) {
  const SharedMemory memory = create(0);
  EXPECT_EQ(memory.bytes(), 0u);
  EXPECT_NE(memory.data(), nullptr);
  EXPECT_TRUE(is_open(memory.span().fd));
}

TEST(SharedMemory, moves_and_is_released_once) {
  SharedMemory first = create(4096);
  first.data()[0] = std::byte{1};
  const int fd = first.span().fd;
  {
    SharedMemory second = std::move(first);
    EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): the state after the move is the test
    EXPECT_EQ(first.bytes(), 0u);
    EXPECT_EQ(first.span().fd, -1);
    SharedMemory third;
    third = std::move(second);
    EXPECT_EQ(third.data()[0], std::byte{1});
    EXPECT_EQ(third.span().fd, fd);
    EXPECT_TRUE(is_open(fd));
  }
  EXPECT_FALSE(is_open(fd));
}

TEST(SharedMemory, refusal_names_memory_size_and_limit) {
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  rlimit none = old;
  none.rlim_cur = 0;
  setrlimit(RLIMIT_NOFILE, &none);
  const auto memory = SharedMemory::create("slots", 4096);
  setrlimit(RLIMIT_NOFILE, &old);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"slots", "4096", "ulimit -n"}) {
    EXPECT_NE(memory.status().message().find(part), absl::string_view::npos) << memory.status();
  }
}

/// seccomp forbids memfd_create() in some containers. The error named free memory and `ulimit -n`.
TEST(SharedMemory, has_no_file_where_the_system_forbids_it) {
  const auto use_memory = [](int error) {
    if (!forbid_system_call(SYS_memfd_create, error)) _exit(2);
    auto memory = SharedMemory::create("slots", 100'000);
    if (!memory.ok() || memory->span().fd != -1 || memory->bytes() != 100'000) _exit(1);
    const bool is_zeroed =
        std::all_of(memory->data(), memory->data() + memory->bytes(), [](std::byte b) { return b == std::byte{0}; });
    std::fill_n(memory->data(), memory->bytes(), std::byte{7});
    *memory = SharedMemory();
    _exit(is_zeroed ? 0 : 1);
  };
  for (const int error : {EPERM, EACCES, ENOSYS}) EXPECT_EXIT(use_memory(error), ::testing::ExitedWithCode(0), "");
}

TEST(SharedMemory, impossible_size_is_refused_and_leaks_nothing) {
  const int before = dup(0);
  close(before);
  EXPECT_FALSE(SharedMemory::create("huge", size_t{1} << 62).ok());
  const int after = dup(0);
  close(after);
  EXPECT_EQ(after, before) << "a descriptor stayed open";
}

}  // namespace
}  // namespace gradrail
