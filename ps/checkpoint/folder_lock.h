#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "gradrail/clock.h"

namespace gradrail::ps {

/// The right of one run to use a checkpoint folder. Each ps task of the run holds it. The tasks of another run are
/// refused, because the sets of two runs in one folder replace each other. A second process of the same task is refused
/// as well, because both would write the same files.
///
/// The lock is a shared flock() of the file `gradrail-lock`. Its text names the run. The first task writes the text
/// while it has the exclusive lock. Each task also holds an exclusive flock() of its file `gradrail-lock-INDEX`. The
/// kernel removes the locks with the process, so that no stale lock remains.
class FolderLock {
 public:
  FolderLock() = default;

  /// `run` names the run, with one text for all its ps tasks.
  /// Without locks in the file system, or without space for the text, it logs a warning and locks nothing.
  /// Errors  FAILED_PRECONDITION: another run uses the folder; names that run and its first task. Also a lock file that
  ///         cannot be opened.
  ///         UNAVAILABLE: another process has been this task for longer than `wait`; names that process.
  static absl::StatusOr<FolderLock> take(const std::string& folder, const std::string& run, uint32_t task_index,
                                         Duration wait = kLongestEnd);

 private:
  /// A former process of this task may still be ending.
  static constexpr Duration kLongestEnd = std::chrono::seconds(10);

  FileDescriptor run_file_;   ///< shared flock()
  FileDescriptor task_file_;  ///< exclusive flock()
};

}  // namespace gradrail::ps
