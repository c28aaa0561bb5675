#include "ps/checkpoint/folder_lock.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::ps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string words(const absl::Status& status) { return std::string(message_of(status)); }

TEST(FolderLock, TasksOfOneRunShareTheFolder) {
  const TemporaryFolder folder;
  const auto first = FolderLock::take(folder.path(), "run a", 0);
  const auto second = FolderLock::take(folder.path(), "run a", 1);
  EXPECT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(second.ok()) << second.status();
}

TEST(FolderLock, AnotherRunIsRefusedWithTheOwner) {
  const TemporaryFolder folder;
  const auto first = FolderLock::take(folder.path(), "run a", 0);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status refused = FolderLock::take(folder.path(), "run b", 0).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(words(refused), AllOf(HasSubstr(folder.path()), HasSubstr("another run uses it: run a"),
                                    HasSubstr("ps/0, process " + std::to_string(getpid())), HasSubstr("run b")));
}

TEST(FolderLock, ASecondProcessOfATaskIsRefusedWithTheFirst) {
  const TemporaryFolder folder;
  const auto first = FolderLock::take(folder.path(), "run a", 1);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status refused = FolderLock::take(folder.path(), "run a", 1, std::chrono::milliseconds(50)).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(words(refused), AllOf(HasSubstr(folder.path()), HasSubstr("another process has this task"),
                                    HasSubstr("ps/1, process " + std::to_string(getpid())), HasSubstr("--task_index")));
}

TEST(FolderLock, ARestartWaitsForTheEndOfItsFormerProcess) {
  const TemporaryFolder folder;
  auto first = FolderLock::take(folder.path(), "run a", 0);
  ASSERT_TRUE(first.ok()) << first.status();
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    *first = FolderLock();
  });
  const auto next = FolderLock::take(folder.path(), "run a", 0);
  EXPECT_TRUE(next.ok()) << next.status();
  ends.join();
}

TEST(FolderLock, TheNextRunMayUseTheFolder) {
  const TemporaryFolder folder;
  ASSERT_TRUE(FolderLock::take(folder.path(), "run a", 0).ok());
  const auto next = FolderLock::take(folder.path(), "run b", 0);
  EXPECT_TRUE(next.ok()) << next.status();
}

TEST(FolderLock, AKilledOwnerLeavesNoLock) {
  const TemporaryFolder folder;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto held = FolderLock::take(folder.path(), "run a", 0);
    const char taken = held.ok() ? 'y' : 'n';
    if (write(ready[1], &taken, 1) == 1) pause();
    _exit(0);
  }
  char taken = 0;
  ASSERT_EQ(read(ready[0], &taken, 1), 1);
  ASSERT_EQ(taken, 'y');
  EXPECT_FALSE(FolderLock::take(folder.path(), "run b", 0).ok());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const auto next = FolderLock::take(folder.path(), "run b", 0);
  EXPECT_TRUE(next.ok()) << next.status();
  close(ready[0]);
  close(ready[1]);
}

/// All tasks of two runs start at once: those of one run have the folder, and no task of the other.
TEST(FolderLock, OneOfTwoRunsWins) {
  for (int repetition = 0; repetition < 50; ++repetition) {
    const TemporaryFolder folder;
    std::vector<absl::StatusOr<FolderLock>> locks(8);
    std::vector<std::thread> tasks;
    for (size_t i = 0; i < locks.size(); ++i) {
      tasks.emplace_back([&, i] {
        locks[i] = FolderLock::take(folder.path(), i % 2 == 0 ? "run a" : "run b", static_cast<uint32_t>(i));
      });
    }
    for (std::thread& task : tasks) task.join();
    size_t of_a = 0, of_b = 0;
    for (size_t i = 0; i < locks.size(); ++i) (i % 2 == 0 ? of_a : of_b) += locks[i].ok() ? 1 : 0;
    EXPECT_EQ(std::max(of_a, of_b), 4u);
    EXPECT_EQ(std::min(of_a, of_b), 0u);
  }
}

/// As a warning it would let two runs share the folder.
TEST(FolderLock, ALockWithoutPermissionIsRefused) {
  for (const char* const name : {"gradrail-lock", "gradrail-lock-0"}) {
    const TemporaryFolder folder;
    write_bytes(folder.file(name), "");
    ASSERT_EQ(chmod(folder.file(name).c_str(), 0), 0);
    ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);
    constexpr uid_t kUnprivileged = 65534;  // root may write everywhere
    const uid_t before = geteuid();
    ASSERT_TRUE(before != 0 || seteuid(kUnprivileged) == 0);
    const absl::Status refused = FolderLock::take(folder.path(), "run a", 0).status();
    ASSERT_EQ(seteuid(before), 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(words(refused), AllOf(HasSubstr(folder.file(name) + ": "), HasSubstr("Permission denied"),
                                      HasSubstr("that this user can write to, or remove it")));
  }
}

TEST(FolderLock, ALockThatIsADeadLinkIsRefused) {
  for (const char* const name : {"gradrail-lock", "gradrail-lock-0"}) {
    const TemporaryFolder folder;
    ASSERT_EQ(symlink("/not-there/file", folder.file(name).c_str()), 0);
    const absl::Status refused = FolderLock::take(folder.path(), "run a", 0).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(words(refused), AllOf(HasSubstr(folder.file(name) + ": "), HasSubstr("/not-there/file, which is not"),
                                      HasSubstr("remove it")));
  }
}

TEST(FolderLock, ALockThatIsNoFileIsNamed) {
  for (const char* const name : {"gradrail-lock", "gradrail-lock-0"}) {
    const TemporaryFolder folder;
    ASSERT_EQ(mkfifo(folder.file(name).c_str(), 0600), 0);
    const absl::Status refused = FolderLock::take(folder.path(), "run a", 0).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(message_of(refused)),
                AllOf(HasSubstr(folder.file(name) + ": is a pipe"), HasSubstr("remove it")));
  }
}

}  // namespace
}  // namespace gradrail::ps
