#pragma once

#include <deque>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "gradrail/clock.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/folder.h"

namespace gradrail::ps {

/// Writes a ps task's snapshots in a dedicated thread while training continues, one save at a time.
/// Threads  Any thread.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::string folder) : folder_(std::move(folder)) {}
  /// Waits for the end of a save under way.
  ~CheckpointWriter() = default;

  /// Returns the memory of the last save for the next snapshots: the shards wait while they copy, and mapped pages
  /// halve that time. Nothing while a save is being written.
  std::optional<std::vector<Checkpoint>> take_memory();

  /// Starts to write, after take_memory(); returns the names of the files.
  std::vector<std::string> write(const SavedSet& set, std::vector<Checkpoint> snapshots);

  /// Returns the result of the save; nothing when it is not written within `timeout`.
  /// Errors  Those of write_checkpoint(). NOT_FOUND: it is none of the last kRemembered saves.
  std::optional<absl::Status> outcome(const SavedSet& set, Duration timeout);

 private:
  static constexpr size_t kRemembered = 8;

  absl::Status write_all(const std::vector<Checkpoint>& snapshots) const;
  std::string path(const Checkpoint& snapshot) const;

  const std::string folder_;
  Mutex mutex_;
  std::vector<Checkpoint> memory_ ABSL_GUARDED_BY(mutex_);
  struct Save {
    SavedSet set;
    std::shared_future<absl::Status> outcome;
  };
  /// The newest is last. Another worker may begin a save before the first one has requested its outcome. Last member:
  /// its destructor waits for the thread, which uses the other members.
  std::deque<Save> saves_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradrail::ps
