#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"

namespace gradrail::ps {

/// The right of one run to use a checkpoint folder. Each ps task of the run holds it. The tasks of another run are
/// refused, because the sets of two runs in one folder replace each other.
///
/// The lock is a shared flock() of the file `gradrail-lock`. Its text names the run. The first task writes the text
/// while it has the exclusive lock. The kernel removes the lock with the process, so that no stale lock remains.
class FolderLock {
 public:
  FolderLock() = default;

  /// `run` names the run, with one text for all its ps tasks. `task` names this task for people.
  /// Without locks in the file system, or without write permission for the file, it logs a warning and locks nothing.
  /// Errors  FAILED_PRECONDITION: another run uses the folder; names that run and its first task.
  static absl::StatusOr<FolderLock> take(const std::string& folder, const std::string& run, const std::string& task);

 private:
  explicit FolderLock(FileDescriptor file) : file_(std::move(file)) {}

  FileDescriptor file_;  ///< holds the flock()
};

}  // namespace gradrail::ps
