#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ps/checkpoint_writer.h"
#include "ps/control.grpc.pb.h"
#include "ps/coordinator.h"
#include "ps/replica_link.h"
#include "ps/server.h"
#include "ps/shard.h"
#include "ps/training.h"
#include "ps/worker_reports.h"

namespace gradrail::ps {

/// The control plane of one ps task: turns calls, which ControlGuard let through, into decisions of
/// the Coordinator and tasks for the shards.
/// Threads  Any thread. `mutex_` is never held while a shard is asked for something: a shard may be reporting a loss.
///          `setup_mutex_` serialises joins, which do ask shards.
class ControlService {
 public:
  /// `checkpoint_folder`: the identity of options.checkpoint_dir.
  ControlService(Server::Options options, std::string checkpoint_folder, std::vector<std::unique_ptr<Shard>>& shards);

  grpc::Status Describe(grpc::ServerContext*, const proto::DescribeRequest*, proto::DescribeReply*);
  grpc::Status Join(grpc::ServerContext*, const proto::JoinRequest*, proto::JoinReply*);
  grpc::Status Barrier(grpc::ServerContext*, const proto::BarrierRequest*, proto::BarrierReply*);
  grpc::Status Heartbeat(grpc::ServerContext*, grpc::ServerReaderWriter<proto::Notice, proto::Ping>*);
  grpc::Status Stats(grpc::ServerContext*, const proto::StatsRequest*, proto::StatsReply*);
  grpc::Status Checkpoint(grpc::ServerContext*, const proto::CheckpointRequest*, proto::CheckpointReply*);
  grpc::Status CheckpointOutcome(grpc::ServerContext*, const proto::CheckpointOutcomeRequest*,
                                 proto::CheckpointOutcomeReply*);
  grpc::Status Leave(grpc::ServerContext*, const proto::LeaveRequest*, proto::LeaveReply*);
  grpc::Status Trace(grpc::ServerContext*, const proto::TraceRequest*, proto::TraceReply*);

  grpc::Status Mirror(grpc::ServerContext*, const proto::MirrorRequest*, proto::MirrorReply*);

  /// The partner of this task is told from now on, or as soon as this task serves. To be called once, when there are
  /// shards.
  absl::Status start_mirroring();
  /// From a shard's thread: how its standby is doing (Shard::Options::on_replica).
  void report_replica(const std::string& cause);
  /// The run is over: the standby hears of it.
  void end_mirroring();
  /// Before the shards end.
  void stop_mirroring();

  /// From a shard's thread; never blocks on anything but the queue's mutex.
  void report_loss(WorkerIndex worker, uint64_t incarnation, const std::string& cause);
  /// The same for a shard that can do nothing more: the run is given up.
  void report_failure(const std::string& cause);

  /// Handles reported losses and silence; called by the task's main thread. Waits up to `patience` for something to do.
  void housekeep(Duration patience);

  bool finished();
  bool has_workers();
  std::string aborted();
  /// It was, because its tasks were not started alike.
  bool misconfigured() const { return misconfigured_; }
  std::vector<std::string> never_joined();
  absl::StatusOr<proto::StatsReply> gather_stats();
  /// How often somebody has asked for what the flight recorders have.
  uint64_t dumps_asked() const { return dumps_.load(std::memory_order_relaxed); }

 private:
  struct Loss {
    WorkerIndex worker = 0;
    uint64_t incarnation = 0;
    std::string cause;
  };
  absl::Status join(const proto::JoinRequest& request, proto::JoinReply& reply);
  absl::Status agree(const proto::JoinRequest& request);
  absl::Status check_group(const proto::JoinRequest& request);
  void regroup();
  absl::Status compare(const proto::JoinRequest& request, const Schema& schema, const Training& training) const;
  bool has_values() const;
  void correct_base(const proto::JoinRequest& request);
  int64_t base_of(const proto::JoinRequest& request, Mode mode) const;
  absl::Status set_up(const proto::JoinRequest& request, const Schema& schema, const Training& training);
  absl::StatusOr<std::shared_ptr<const ps::Checkpoint>> restore(const proto::JoinRequest& request, const Schema& schema,
                                                                const Training& training);
  absl::StatusOr<std::string> admit(const proto::JoinRequest& request);
  absl::Status heard(const proto::Member& member);
  absl::Status save(const proto::CheckpointRequest& request, proto::CheckpointReply& reply);
  void declare_lost(const Loss& loss);

  // control_replica.cc
  proto::MirrorRequest mirrored();
  absl::Status check_alike(const proto::MirrorRequest& request) const;
  bool keeps_for_workers(const proto::MirrorRequest& request);
  absl::Status take_mirrored(const proto::MirrorRequest& request, proto::MirrorReply& reply);
  absl::Status take_over(const proto::JoinRequest& request);
  void resume(const proto::JoinRequest& request);
  std::string why_deserted();
  void describe_shards(google::protobuf::RepeatedPtrField<proto::JoinReply::Shard>& shards) const;
  void be_replaced();
  void be_refused(const absl::Status& why);
  static absl::Status no_partner();
  bool partner_can_return() const;
  std::string partner_name() const;
  absl::Status still_stands_by() const;
  /// UNAVAILABLE: this task's workers are to go to its standby.
  absl::Status still_serves() const;

  const Server::Options options_;
  const std::string checkpoint_folder_;
  std::atomic<uint64_t> process_;  ///< of whom this task goes on for, once it has taken over
  std::vector<std::unique_ptr<Shard>>& shards_;
  CheckpointWriter writer_;

  std::mutex setup_mutex_;
  struct Agreed {
    Schema schema;
    Training training;
    ShardMap map;
    uint32_t first_shard = 0;
    uint64_t group = 0;                   ///< of ps processes
    std::optional<WorkerIndex> newcomer;  ///< that set this up, and knew of no run before
    int64_t run_base = 0;                 ///< sync, backup: version at which the run's first step began
  };
  std::optional<Agreed> agreed_;    ///< under setup_mutex_
  proto::BeganFrom began_from_;     ///< under setup_mutex_
  std::set<uint64_t> past_groups_;  ///< under setup_mutex_: that have been left

  std::atomic<bool> misconfigured_ = false;
  std::atomic<bool> was_replaced_ = false;  ///< this task has served, and its standby has taken over
  std::atomic<bool> stands_by_;             ///< this task is a standby, and has not taken over
  /// How often this task and its partner have changed places; more than 0 if this one has taken over. Of two that both
  /// believe to serve, the one that knows of more is right.
  std::atomic<uint64_t> term_ = 0;
  proto::MirrorRequest primary_;  ///< under setup_mutex_: what it said last
  std::string primary_token_;     ///< under setup_mutex_
  bool primary_is_gone_ = false;  ///< under setup_mutex_: it was started again

  std::mutex mutex_;
  std::condition_variable changed_;
  Coordinator coordinator_;                         ///< under mutex_
  WorkerReports reports_;                           ///< under mutex_
  std::map<WorkerIndex, proto::TaskMarks> traces_;  ///< under mutex_: handed in for the chief
  proto::MirrorRequest set_up_by_;                  ///< under mutex_: generation, agreed, run_base and began_from
  TimePoint primary_heard_;                         ///< under mutex_
  bool primary_is_over_ = false;                    ///< under mutex_
  uint64_t refused_incarnation_ = 0;                ///< of the join refused last, under mutex_

  std::mutex losses_mutex_;
  std::condition_variable losses_changed_;
  std::deque<Loss> losses_;             ///< under losses_mutex_
  std::string failure_;                 ///< under losses_mutex_: of the first shard that had one
  TimePoint housekept_ = Clock::now();  ///< of who calls housekeep()

  std::unique_ptr<ReplicaLink> partner_;  ///< null: this task has none

  std::atomic<uint64_t> dumps_ = 0;
  std::atomic<Duration::rep> saved_at_ = 0;  ///< of Clock; 0: no checkpoint was written
};

}  // namespace gradrail::ps
