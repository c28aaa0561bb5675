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
#include "base/clock.h"
#include "base/status.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace gradrail::ps {
namespace {

/// Another task has the exclusive lock while it writes some hundred bytes. An NFS server may be slow.
constexpr auto kLongestWrite = std::chrono::seconds(10);
constexpr auto kBetweenTries = std::chrono::milliseconds(10);
constexpr size_t kMaxTextBytes = 64 * 1024;

struct Owner {
  std::string run;
  std::string first_task;
};

std::string host_name() {
  char name[256] = "?";
  gethostname(name, sizeof(name) - 1);
  return name;
}

/// Two lines: the run, and its first task.
std::string owner_text(const std::string& run, const std::string& task) {
  return fmt::format("{}\n{}, process {} of host {}, since {}\n", run, task, getpid(), host_name(),
                     absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()));
}

Owner read_owner(int fd) {
  const std::string text = lseek(fd, 0, SEEK_SET) == 0 ? read_up_to(fd, kMaxTextBytes).value_or("") : "";
  const size_t line = text.find('\n');
  if (line == std::string::npos) return {};
  return {.run = text.substr(0, line), .first_task = text.substr(line + 1, text.find('\n', line + 1) - line - 1)};
}

bool write_owner(int fd, const std::string& text) {
  return ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0 && write_all(fd, text);
}

/// A run without the lock is better than no run.
FolderLock without_lock(const std::string& path, int error) {
  spdlog::warn("{}: {}: a second run in this checkpoint folder is not refused", path,
               std::generic_category().message(error));
  return {};
}

bool try_lock(int fd, int kind) { return flock(fd, kind | LOCK_NB) == 0; }

}  // namespace

absl::StatusOr<FolderLock> FolderLock::take(const std::string& folder, const std::string& run,
                                            const std::string& task) {
  const std::string path = (std::filesystem::path(folder) / "gradrail-lock").string();
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file) return without_lock(path, errno);
  const TimePoint deadline = Clock::now() + kLongestWrite;
  while (true) {
    if (try_lock(file.get(), LOCK_EX)) {
      if (!write_owner(file.get(), owner_text(run, task))) return without_lock(path, errno);
    } else if (errno != EWOULDBLOCK) {
      return without_lock(path, errno);
    }
    // From exclusive to shared is no atomic step: a task of another run may have been between the two.
    if (try_lock(file.get(), LOCK_SH)) break;
    if (Clock::now() >= deadline) {
      return absl::FailedPreconditionError(
          fmt::format("--checkpoint_dir {}: another process has locked {}", folder, path));
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
  // Hence the text decides, and not the lock that was taken.
  const Owner owner = read_owner(file.get());
  if (owner.run == run) return FolderLock(std::move(file));
  return absl::FailedPreconditionError(
      fmt::format("--checkpoint_dir {}: another run uses it: {} (first task: {}); this run is: {} (use another folder, "
                  "or stop that "
                  "run)",
                  folder, owner.run, owner.first_task, run));
}

}  // namespace gradrail::ps
