#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "ps/call_proof.h"
#include "ps/control_call.h"
#include "ps/security.h"
#include "worker/clock_comparison.h"

namespace gradrail::worker {

/// Tells people what is waited for: after a second, then every 10 s.
using Notice = std::function<void(const std::string&)>;
/// Where a ps task is now. Errors  NOT_FOUND, UNAVAILABLE: nobody knows yet, and why. Others are final.
using Whereabouts = std::function<absl::StatusOr<std::string>()>;

/// A worker's side of the control plane towards one ps task.
/// Threads  Owner thread; the heartbeat has its own.
class ControlLink {
 public:
  /// `stop` may be null; becoming true it ends describe() (CANCELLED) and the tries of join().
  /// `secret` of the job; "": it has none. `where`, unless empty, is asked before each try of describe(): the task may
  /// have come up elsewhere.
  ControlLink(uint32_t ps_index, std::string address, std::shared_ptr<grpc::ChannelCredentials> credentials,
              std::string secret, Notice notice, const std::atomic<bool>* stop, Whereabouts where = nullptr);
  ~ControlLink();

  /// "parameter server 0 (10.0.0.1:2222)"
  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }

  /// Waits for the task to come up, saying so. DEADLINE_EXCEEDED.
  absl::StatusOr<ps::proto::DescribeReply> describe(TimePoint deadline);
  /// Identity of the task's checkpoint folder, known after describe(); "" when it was given none.
  const std::string& checkpoint_folder() const { return checkpoint_folder_; }
  /// Tries again while an earlier incarnation of this worker has not been noticed to be gone, or this task knows other
  /// parameter servers.
  absl::StatusOr<ps::proto::JoinReply> join(const ps::proto::JoinRequest& request, TimePoint deadline);
  /// One round; complete or not.
  absl::StatusOr<ps::proto::BarrierReply> barrier(const ps::proto::BarrierRequest& request);
  /// `dump`: also asks for what all flight recorders have.
  absl::StatusOr<ps::proto::StatsReply> stats(bool dump = false);
  /// The same without describe() before, for who does not join.
  absl::StatusOr<ps::proto::StatsReply> stats_for_a_watcher(bool dump);
  absl::StatusOr<ps::proto::TraceReply> trace(const ps::proto::TraceRequest& request);
  absl::StatusOr<ps::proto::CheckpointReply> checkpoint(const ps::proto::CheckpointRequest& request);
  /// From any thread.
  absl::StatusOr<ps::proto::CheckpointOutcomeReply> checkpoint_outcome(
      const ps::proto::CheckpointOutcomeRequest& request);
  /// `failed`: why this worker cannot go on, so that sync does not go on without it; "": goodbye.
  absl::Status leave(const ps::proto::Member& member, const std::string& failed);
  absl::Status say_steps_are_done(const ps::proto::Member& member);
  /// Goodbye for a while: this worker looks for a ps that it has lost. Does not wait long for one that is gone itself.
  void leave_to_return(const ps::proto::Member& member);
  /// After a data connection ended: whether that was the ps' decision, and why (ABORTED). OK: it did not say.
  absl::Status why_dismissed(const ps::proto::Member& member);

  /// What pings carry besides: called from the heartbeat's thread. Before start_heartbeat().
  void fill_pings(std::function<void(ps::proto::Ping&)> fill) { fill_ = std::move(fill); }
  /// Of the task's clock. Any thread.
  ClockOffset clock_offset() const;

  /// Pings until stop_heartbeat(); `failed` is called once, from the heartbeat's thread, when the ps is gone
  /// (UNAVAILABLE) or says that the run is over (ABORTED); `heard` is told each notice, from the same thread.
  void start_heartbeat(const ps::proto::Member& member, std::function<void(absl::Status)> failed,
                       std::function<void(const ps::proto::Notice&)> heard);
  void stop_heartbeat();

 private:
  using Stub = ps::proto::Control::Stub;
  template <typename Reply>
  grpc::Status call(ps::Method<Reply> method, const char* name, Duration patience,
                    const google::protobuf::MessageLite& request, Reply& reply);
  absl::Status send_leave(const ps::proto::LeaveRequest& request, Duration patience);
  absl::Status beat(const ps::proto::Member& member, grpc::ClientContext& context,
                    const std::function<void(const ps::proto::Notice&)>& heard);
  void reopen();
  grpc::Status look_up();
  absl::Status explain(const grpc::Status& status) const;
  absl::Status explain_membership(const grpc::Status& status) const;
  bool asked_to_stop() const { return stop_ != nullptr && stop_->load(std::memory_order_relaxed); }

  const uint32_t ps_index_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const Notice notice_;
  const std::atomic<bool>* const stop_;
  const Whereabouts where_;
  std::string address_;  ///< set for good when describe() has succeeded, as is name_
  std::string name_;
  std::unique_ptr<Stub> stub_;  ///< null until an address is known
  ps::CallProver prover_;
  std::string checkpoint_folder_;

  std::function<void(ps::proto::Ping&)> fill_;  ///< set before the thread starts

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  ClockComparison clocks_;                          ///< under mutex_
  bool stopping_ = false;                           ///< under mutex_
  std::unique_ptr<grpc::ClientContext> heartbeat_;  ///< set before the thread starts
  std::thread thread_;
};

/// A set of checkpoint files is whole in one folder only. Errors  FAILED_PRECONDITION names two tasks that differ.
absl::Status check_one_checkpoint_folder(absl::Span<const std::unique_ptr<ControlLink>> controls);

}  // namespace gradrail::worker
