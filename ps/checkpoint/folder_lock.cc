#include "ps/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "base/log.h"
#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/clock.h"

namespace gradrail::ps {
namespace {

/// Time limit of the wait for another task, which has the exclusive lock while it writes some hundred bytes. An NFS
/// server may be slow.
constexpr auto kLongestWrite = std::chrono::seconds(10);
constexpr auto kBetweenTries = std::chrono::milliseconds(10);
constexpr size_t kMaxTextBytes = 64 * 1024;

struct Owner {
  std::string run;
  std::string task;  ///< task that wrote the file, with its process and host
};

std::string host_name() {
  char name[256] = "?";
  gethostname(name, sizeof(name) - 1);
  return name;
}

/// Two lines: the run, and the task that writes the file.
std::string owner_text(const std::string& run, const std::string& task) {
  return fmt::format("{}\n{}, process {} of host {}, since {}\n", run, task, getpid(), host_name(),
                     absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()));
}

Owner read_owner(int fd) {
  const std::string text = lseek(fd, 0, SEEK_SET) == 0 ? read_up_to(fd, kMaxTextBytes).value_or("") : "";
  const size_t line = text.find('\n');
  if (line == std::string::npos) return {};
  return {.run = text.substr(0, line), .task = text.substr(line + 1, text.find('\n', line + 1) - line - 1)};
}

bool write_owner(int fd, const std::string& text) {
  return ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0 && write_all(fd, text);
}

/// A run without the lock is better than no run.
FileDescriptor without_lock(const std::string& path, int error, std::string_view second) {
  log_warning("{}: {}: a second {} in this checkpoint folder is not refused", path,
              std::generic_category().message(error), second);
  return {};
}

bool try_lock(int fd, int kind) { return flock(fd, kind | LOCK_NB) == 0; }

/// Opens the lock file.
/// Errors  FAILED_PRECONDITION: the name has a pipe, a broken link, a file without write permission or such. The folder
///         itself is writable: a run without the lock would share it with another one.
absl::StatusOr<FileDescriptor> open_file(const std::string& path) {
  absl::StatusOr<FileDescriptor> file = open_regular_file(path, O_RDWR | O_CREAT, 0666);
  if (file.ok()) return file;
  return absl::FailedPreconditionError(
      fmt::format("--checkpoint_dir: {} (make it a file that this user can write to, or remove it while no run uses "
                  "the folder; the next start writes it again)",
                  message_of(file.status())));
}

absl::StatusOr<FileDescriptor> lock_run(const std::string& folder, const std::string& run, const std::string& task) {
  constexpr std::string_view kSecond = "run";
  const std::string path = (std::filesystem::path(folder) / "gradrail-lock").string();
  GRADRAIL_ASSIGN_OR_RETURN(FileDescriptor file, open_file(path));
  const TimePoint deadline = Clock::now() + kLongestWrite;
  while (true) {
    if (try_lock(file.get(), LOCK_EX)) {
      if (!write_owner(file.get(), owner_text(run, task))) return without_lock(path, errno, kSecond);
    } else if (errno != EWOULDBLOCK) {
      return without_lock(path, errno, kSecond);
    }
    // The change from exclusive to shared is not atomic: a task of another run may have locked the file between the
    // two.
    if (try_lock(file.get(), LOCK_SH)) break;
    if (Clock::now() >= deadline) {
      return absl::FailedPreconditionError(
          fmt::format("--checkpoint_dir {}: another process has locked {}", folder, path));
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
  // The text decides for this reason, not the lock that was taken.
  const Owner owner = read_owner(file.get());
  if (owner.run == run) return file;
  return absl::FailedPreconditionError(
      fmt::format("--checkpoint_dir {}: another run uses it: {} (first task: {}); this run is: {} (use another folder, "
                  "or stop that run)",
                  folder, owner.run, owner.task, run));
}

absl::StatusOr<FileDescriptor> lock_task(const std::string& folder, const std::string& run, const std::string& task,
                                         uint32_t task_index, TimePoint deadline) {
  constexpr std::string_view kSecond = "process of this task";
  const std::string path = (std::filesystem::path(folder) / fmt::format("gradrail-lock-{}", task_index)).string();
  GRADRAIL_ASSIGN_OR_RETURN(FileDescriptor file, open_file(path));
  while (!try_lock(file.get(), LOCK_EX)) {
    if (errno != EWOULDBLOCK) return without_lock(path, errno, kSecond);
    if (Clock::now() >= deadline) {
      return absl::UnavailableError(fmt::format(
          "--checkpoint_dir {}: another process has this task: {} (end that process, or give each ps task its own "
          "--task_index; if its host is lost, start this task again after the lock has expired)",
          folder, read_owner(file.get()).task));
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
  // The lock holds without the text, for example on a full disk: a refusal then names a former owner.
  if (!write_owner(file.get(), owner_text(run, task)))
    log_warning("{}: {}: the file does not name this task", path, std::generic_category().message(errno));
  return file;
}

}  // namespace

absl::StatusOr<FolderLock> FolderLock::take(const std::string& folder, const std::string& run, uint32_t task_index,
                                            Duration wait) {
  const std::string task = fmt::format("ps/{}", task_index);
  const TimePoint deadline = Clock::now() + wait;
  FolderLock lock;
  GRADRAIL_ASSIGN_OR_RETURN(lock.run_file_, lock_run(folder, run, task));
  GRADRAIL_ASSIGN_OR_RETURN(lock.task_file_, lock_task(folder, run, task, task_index, deadline));
  return lock;
}

}  // namespace gradrail::ps
