#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/protocol/training.h"
#include "ps/shard/partition.h"

namespace gradrail::ps {

/// The interface of the ps task of a node to the next level of a tree (worker/tree). A node is the ps of its workers.
/// At its parent the node is one worker, with the weight of all of its workers.
/// Errors   UNAVAILABLE: the parent was lost. FAILED_PRECONDITION: the run does not fit.
/// Threads  Any thread.
class Parent {
 public:
  virtual ~Parent() = default;

  struct Joined {
    std::shared_ptr<const Checkpoint> parameters;  ///< parameters of the parent; null: it has none yet
    int64_t run_base = 0;                          ///< value of JoinReply.base_step
  };
  /// Joins the run of the parent with the agreement of the node's workers, and takes its parameters. A second call
  /// leaves the parent first. `map` is that of the shards of this task.
  virtual absl::StatusOr<Joined> join(const Schema& schema, const Training& training, const ShardMap& map) = 0;
  /// Makes the store of one shard of this task, after join().
  virtual StoreMaker store_maker(uint32_t shard) = 0;
  /// Reason why there is no exchange with the parent any more. OK: there is one, or join() was not called.
  virtual absl::Status failure() const = 0;
  /// Ends the membership at the parent. `failed` is empty after a run that has ended well.
  virtual void leave(const std::string& failed) = 0;

  /// Host and port, for people.
  virtual std::string name() const = 0;
  virtual bool saves_checkpoints() const = 0;
  /// Begins a checkpoint at the parent. Only the node that is the chief of the parent has one to begin.
  virtual absl::Status begin_checkpoint() = 0;
  /// Whether it is written.
  virtual absl::StatusOr<bool> is_checkpoint_written() = 0;
};

}  // namespace gradrail::ps
