#pragma once

#include <atomic>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "ps/control/control_context.h"

namespace gradrail::ps {

class CheckpointHandler;
class Replication;
namespace proto {
class StatsReply;
class StatsRequest;
class TaskMarks;
class TraceReply;
class TraceRequest;
}  // namespace proto

/// Answers observers: figures of the run, and the marks of flight recorders, which the chief collects from all tasks.
/// Threads  Any thread.
class StatsHandler {
 public:
  StatsHandler(ControlContext& context, const CheckpointHandler& checkpoint, Replication& replication);
  ~StatsHandler();

  absl::Status stats(const proto::StatsRequest& request, proto::StatsReply& reply);
  /// Collects the figures without a request for dumps.
  absl::Status gather(proto::StatsReply& reply);
  /// Errors  NOT_FOUND: no marks at this index. INVALID_ARGUMENT: broken marks. Those of Membership::heard().
  absl::Status trace(const proto::TraceRequest& request, proto::TraceReply& reply);

  /// Number of requests that all tasks dump their flight recorders.
  uint64_t dumps_asked() const { return dumps_.load(std::memory_order_relaxed); }

 private:
  absl::Status add_shards(proto::StatsReply& reply);
  absl::Status own_marks(proto::TaskMarks& marks) const;

  ControlContext& context_;
  const CheckpointHandler& checkpoint_;
  Replication& replication_;
  std::atomic<uint64_t> dumps_ = 0;

  Mutex traces_mutex_;
  /// Marks that workers have handed in for the chief.
  std::map<WorkerIndex, std::unique_ptr<proto::TaskMarks>> traces_ ABSL_GUARDED_BY(traces_mutex_);
};

}  // namespace gradrail::ps
