#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "gradrail/clock.h"

namespace gradrail::worker {

/// The thread for the heartbeats of a client to all its ps tasks.
/// Threads  Any thread, except as noted.
class Heartbeats {
 public:
  /// One turn of a heartbeat, in the heartbeats' thread. It must not wait. Returns the time of the next turn.
  using Turn = std::function<TimePoint()>;

  /// All heartbeats were removed.
  ~Heartbeats();

  /// Starts the thread, once for all heartbeats.
  /// Errors  RESOURCE_EXHAUSTED: the kernel refused a thread.
  absl::Status start();
  /// The first turn follows wake(). Returns the number of the heartbeat.
  uint64_t add(Turn turn);
  /// The next turn is due now. Ignored for a heartbeat that was removed.
  void wake(uint64_t number);
  /// No turn runs or follows. Not from a turn.
  void remove(uint64_t number);

 private:
  struct Entry {
    Turn turn;
    TimePoint due;
  };
  void run();

  Mutex mutex_;
  ConditionVariable changed_;
  std::map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t running_ ABSL_GUARDED_BY(mutex_) = 0;  ///< number of the heartbeat in its turn; 0: none
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  ///< last
};

}  // namespace gradrail::worker
