#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "ps/control/control_context.h"

namespace gradrail::ps {

class Replication;
namespace proto {
class BarrierReply;
class BarrierRequest;
}  // namespace proto

/// Lets workers wait for each other. A waiting call holds no thread: thousands of workers wait at the same time.
/// Threads  Any thread. The handler owns one thread, which ends the waits.
class BarrierHandler {
 public:
  /// The end of a wait, called once without ControlState::mutex.
  using Done = std::function<void(const absl::Status&)>;

  BarrierHandler(ControlContext& context, const Replication& replication)
      : context_(context), replication_(replication) {}
  /// Starts the thread; called before the first call.
  /// Errors  RESOURCE_EXHAUSTED: the kernel refused a thread.
  absl::Status start();
  /// No call waits any more.
  ~BarrierHandler();

  /// Enters the barrier. `done` is called, immediately or later, when it is complete or after the timeout of the
  /// request; the worker then calls again. `reply` stays until then. Returns the number of the wait for cancel().
  /// Errors  Those of `done`: ABORTED: the run is over. UNAVAILABLE: the backup serves instead. Those of
  ///         Membership::heard().
  uint64_t enter(const proto::BarrierRequest& request, proto::BarrierReply& reply, Done done);
  /// The caller has disconnected. Ends the wait with CANCELLED, if it has not ended.
  void cancel(uint64_t number);

 private:
  struct Barrier {
    std::string name;
    uint64_t generation = 0;
    bool live_only = false;
    auto operator<=>(const Barrier&) const = default;
  };
  struct Wait {
    uint64_t number = 0;
    Barrier barrier;
    TimePoint deadline;
    proto::BarrierReply* reply = nullptr;
    Done done;
    absl::Status status;
  };
  using Waits = std::list<Wait>;

  void run();
  Waits take_ended() ABSL_EXCLUSIVE_LOCKS_REQUIRED(context_.state.mutex);

  ControlContext& context_;
  const Replication& replication_;
  Waits waits_ ABSL_GUARDED_BY(context_.state.mutex);
  uint64_t next_number_ ABSL_GUARDED_BY(context_.state.mutex) = 1;
  bool is_ending_ ABSL_GUARDED_BY(context_.state.mutex) = false;
  std::thread thread_;  ///< last
};

}  // namespace gradrail::ps
