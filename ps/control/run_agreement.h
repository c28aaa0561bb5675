#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>

#include "absl/status/statusor.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/control/control_context.h"
#include "ps/protocol/shard_map.h"
#include "ps/protocol/training.h"

namespace gradrail::ps {

namespace proto {
class JoinRequest;
}

/// The agreement that all workers of a run share. It has model, training options, the group of ps processes and the
/// step at which the run begins here. The first worker that joins decides it, and every other one is compared with it.
///
/// Invariants
///   1. While there is an agreement, every shard is set up by it.
///   2. A group that was left is never agreed on again (docs/design/exchange.md).
///   3. ControlState::run holds the last agreement, also while the tasks begin again.
/// Threads  The caller's lock (RunSetup::mutex): the functions call shards and must exclude each other.
class RunAgreement {
 public:
  explicit RunAgreement(ControlContext& context) : context_(context) {}

  /// Compares a worker's request with the agreement. Without an agreement it sets up the shards by this request, with
  /// the parameters of a checkpoint if `may_restore`. A backup receives its parameters from the primary.
  /// Errors   INVALID_ARGUMENT: broken request. FAILED_PRECONDITION: names the difference. OUT_OF_RANGE: other ps
  ///          processes. As read_checkpoint_set().
  absl::Status agree(const proto::JoinRequest& request, bool may_restore);
  /// The backup replaces its agreement when its primary has another one.
  void reset();

  bool exists() const { return agreed_.has_value(); }
  // The rest requires an agreement.
  const Schema& schema() const;
  Mode mode() const;
  /// Buckets of the shard at this index of the task.
  uint32_t bucket_count(size_t shard) const;
  /// sync, quorum: version at which the first step of the run began.
  int64_t run_base() const;
  /// The ps processes that the agreement is of (JoinRequest.group).
  uint64_t group() const;
  /// JoinReply.run.
  uint64_t run() const;
  void set_run(uint64_t run, int64_t run_base);

  const BeganFrom& began_from() const { return began_from_; }
  void set_began_from(const BeganFrom& began_from);

 private:
  struct Agreed {
    Schema schema;
    Training training;
    ShardMap map;
    uint32_t first_shard = 0;
    uint64_t group = 0;                   ///< group of ps processes
    std::optional<WorkerIndex> newcomer;  ///< the worker that decided, if it did not continue an earlier group
    int64_t run_base = 0;
    uint64_t run = 0;
  };
  absl::Status compare(const proto::JoinRequest& request, const Schema& schema, const Training& training) const;
  absl::Status set_up(const proto::JoinRequest& request, const Schema& schema, const Training& training,
                      bool may_restore);
  absl::StatusOr<std::shared_ptr<const Checkpoint>> restore(const proto::JoinRequest& request, const Schema& schema,
                                                            const Training& training) const;
  absl::Status check_group(const proto::JoinRequest& request);
  void begin_again();
  absl::Status follow_returned(const proto::JoinRequest& request);
  int64_t base_of(const proto::JoinRequest& request, Mode mode) const;
  void publish(const proto::JoinRequest& request);
  const Agreed& agreed() const;

  ControlContext& context_;
  std::optional<Agreed> agreed_;
  BeganFrom began_from_;
  uint64_t restored_run_ = 0;  ///< run of the checkpoint in began_from_; 0: none, or unknown
  std::set<uint64_t> past_groups_;
};

}  // namespace gradrail::ps
