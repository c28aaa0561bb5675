#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "gradrail/client.h"
#include "gradrail/clock.h"
#include "worker/client/model_memory.h"
#include "worker/client/paths/path_manager.h"
#include "worker/client/run_failure.h"
#include "worker/client/session/checkpoint_save.h"
#include "worker/client/session/control_link.h"
#include "worker/client/session/identity.h"
#include "worker/client/telemetry.h"

namespace gradrail::worker {

/// This worker's membership in the run: a control link to each ps task, its answer to the join, and its replies to the
/// heartbeats. Failover and Rejoin change it after a ps was lost.
///
/// Order    The first join: open(), describe(), join(). Each further one: release(), describe(), join().
/// Threads  chief(), is_chief(): any thread. The rest: owner thread.
class Session {
 public:
  /// All references outlive this.
  Session(const ClientOptions& options, Identity& identity, const ModelMemory& memory, RunFailure& failure,
          Telemetry& telemetry, PathManager& paths, std::shared_ptr<ps::ControlDialer> dialer);

  // Joining.
  ps::proto::DescribeRequest describe_request() const;
  /// Reads the certificates.
  /// Errors  FAILED_PRECONDITION: an address beyond this host, and no authentication.
  absl::Status open();
  /// Waits for every ps task and adds a link for each of its shards to the path manager.
  absl::Status describe(TimePoint deadline);
  /// Joins every ps task and starts the heartbeats; returns the first steps of this worker, by fragment.
  /// `again`: after the loss of a ps, with a shorter deadline.
  /// Errors  UNAVAILABLE: a ps was lost, or has started again since describe().
  absl::StatusOr<std::vector<uint64_t>> join(TimePoint deadline, bool again);
  /// The first steps that a reply names, by fragment.
  /// Errors  INTERNAL: it has another number of them.
  absl::StatusOr<std::vector<uint64_t>> first_steps_in(const ps::proto::JoinReply& reply, uint32_t ps_index) const;
  /// Releases the membership, all links and the incarnation before this worker joins again.
  void release();
  /// Stops the heartbeats: no thread but the owner's uses this or what it refers to.
  void stop_heartbeats();

  // The ps tasks.
  absl::Span<const std::unique_ptr<ControlLink>> controls() const { return controls_; }
  ControlLink& control(uint32_t ps_index) { return *controls_[ps_index]; }
  /// ps tasks that count this worker as a member; after a join() that failed these may be fewer than all.
  size_t joined_count() const { return joined_count_; }
  /// A ps that was lost between its description and the join has started again: the group of the description is over.
  bool found_other_process() const { return found_other_process_; }
  CheckpointSave& save() { return *save_; }
  /// Reports to each ps task that this worker's steps are done. A task that takes over later, or is joined again,
  /// receives it too.
  absl::Status finish_steps();

  // Backups: each ps task has one, or none has.
  bool has_backups() const { return !options_.recovery.backups.empty(); }
  enum class Role { serving, backup };
  /// A link to one of the two tasks of `ps_index`.
  std::unique_ptr<ControlLink> open_control(uint32_t ps_index, Role role, const LogSink& log);
  ps::proto::JoinRequest join_request(uint32_t first_shard) const;
  /// Replaces a lost ps task by the one that this worker has joined over `control`. The two addresses change places
  /// when it is the backup's.
  void switch_to(uint32_t ps_index, std::unique_ptr<ControlLink> control, const ps::proto::JoinReply& joined,
                 bool is_at_backup_address);

  // The run.
  /// sync, quorum: a step is applied once, for all workers, and the ps counts it.
  bool sums() const { return options_.mode.sums(); }
  uint32_t chief() const { return chief_.load(std::memory_order_relaxed); }
  bool is_chief() const { return chief() == identity_.task_index(); }
  /// Requests the chief immediately, not with the next heartbeat.
  void ask_for_chief();
  /// False: the chief must offer initial values.
  bool is_initialised() const { return initialised_; }
  void set_initialised() { initialised_ = true; }
  bool saves_checkpoints() const { return saves_checkpoints_; }
  /// The step after which this run's positions are counted; a ps may correct it while other workers join again.
  int64_t run_base() const { return run_base_; }
  void set_run_base(int64_t base) { run_base_ = base; }
  void follow_run_base();
  uint64_t group() const { return group_; }
  /// Resets the group after an attempt to join it that failed: this worker is no former member of it.
  void forget_group() { group_ = 0; }
  /// Sets the number of steps of this worker that were answered before it joins again.
  void set_origin_position(uint64_t position) { origin_position_ = position; }
  /// Begins a further join: the servers report the steps that they have of this worker's incarnation.
  void begin_return();
  /// Minimum of their answers for the first fragment. None: no server has the incarnation.
  const std::optional<uint64_t>& left_steps() const { return left_steps_; }
  /// The global step of the checkpoint that the servers of this group began from. Empty: they began from nothing.
  const std::optional<uint64_t>& began_from() const { return began_from_; }

  /// Whether this worker has ever had the parameters of the run.
  bool has_started() const { return has_started_; }
  void set_started() { has_started_ = true; }

  // State that a backup which takes over receives from this worker.
  bool steps_finished() const { return steps_finished_; }
  uint64_t next_barrier(const std::string& name) { return ++barrier_generations_[name]; }
  void forget_barriers() { barrier_generations_.clear(); }
  const std::map<std::string, uint64_t>& barrier_generations() const { return barrier_generations_; }

 private:
  struct Task {
    uint32_t index = 0;   ///< index in RecoveryOptions::ps_address
    std::string address;  ///< "host:port"; "": only RecoveryOptions::ps_address has it
  };
  struct Server {
    Task serving;  ///< the task that serves, or may serve next
    Task backup;   ///< the other one; without backups there is none
  };

  absl::StatusOr<std::string> resolve(uint32_t task_index) const;
  absl::StatusOr<ps::proto::DescribeReply> describe_one(uint32_t ps_index, TimePoint deadline);
  absl::Status find_successor(uint32_t ps_index, TimePoint deadline);
  absl::Status take_shards(uint32_t ps_index, const ps::proto::JoinReply& reply, size_t& next_link);
  void start_heartbeat(uint32_t ps_index);
  void tell_losses(ps::proto::Ping& ping);
  void forget_news();

  // Set once.
  const ClientOptions& options_;
  Identity& identity_;
  const ModelMemory& memory_;
  RunFailure& failure_;
  Telemetry& telemetry_;
  PathManager& paths_;
  std::shared_ptr<ps::ControlDialer> dialer_;

  // Owner thread.
  std::vector<Server> servers_;           ///< indexed by ps task
  std::vector<uint64_t> processes_;       ///< process of each ps task, from its description
  uint64_t group_ = 0;                    ///< a hash of them: the ps processes that this worker has joined
  std::optional<uint64_t> origin_group_;  ///< the last group that this worker has left
  uint64_t origin_position_ = 0;
  uint64_t left_incarnation_ = 0;
  std::optional<uint64_t> left_steps_;
  std::optional<uint64_t> began_from_;
  bool found_other_process_ = false;
  bool initialised_ = true;
  bool saves_checkpoints_ = true;
  bool has_started_ = false;
  bool steps_finished_ = false;
  int64_t run_base_ = 0;
  int64_t run_base_followed_ = 0;  ///< the last value of run_base_heard_ that run_base_ was set from
  std::map<std::string, uint64_t> barrier_generations_;
  size_t joined_count_ = 0;

  // Any thread: written by the heartbeat of ps task 0.
  std::atomic<uint32_t> chief_ = 0;
  std::atomic<int64_t> run_base_heard_ = 0;
  Mutex news_mutex_;
  /// The last reply of ps task 0; null before. Shared, because the message has no complete type here.
  std::shared_ptr<const ps::proto::HeartbeatReply> news_ ABSL_GUARDED_BY(news_mutex_);
  std::atomic<uint64_t> run_ = 0;  ///< JoinReply.run; 0: not known yet

  Heartbeats heartbeats_;                               ///< its thread uses all fields above
  std::vector<std::unique_ptr<ControlLink>> controls_;  ///< declared after all fields that their heartbeats use
  std::optional<CheckpointSave> save_{controls_};       ///< last: its thread uses controls_
};

}  // namespace gradrail::worker
