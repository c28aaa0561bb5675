#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ps/replication/backup_sender.h"
#include "ps/shard/answer_gate.h"
#include "ps/shard/environment.h"
#include "ps/shard/partition.h"
#include "ps/shard/shard_protocol.h"
#include "transport/completion.h"

namespace gradrail::ps {

/// The part of a shard that keeps a backup level, and holds the answers that show a state which the backup lacks.
/// AnswerGate decides when an answer may leave; this class carries its decisions out.
/// Threads  Owner thread of the shard.
class PrimaryRole {
 public:
  /// `answer` sends an answer that was held.
  PrimaryRole(ShardEnvironment& environment, Partition& partition, std::function<void(const Action&)> answer)
      : environment_(environment), partition_(partition), answer_(std::move(answer)) {}

  /// Connects to a backup at one of its endpoints. A former backup is detached.
  /// Errors  FAILED_PRECONDITION: the shard is not set up. UNAVAILABLE: no endpoint could be connected to; gives the
  ///         reason.
  absl::Status attach_backup(const std::vector<ShardEndpoint>& endpoints, const std::string& key);
  /// Continues without a backup and sends all held answers.
  void detach_backup();
  /// Removes the backup and all held answers: the shard begins again.
  void reset();

  std::string describe_backup() const { return sender_ == nullptr ? "" : sender_->describe(); }
  /// True when an answer may have to wait for a backup.
  bool is_replicating() const { return sender_ != nullptr || gate_.is_unsure(); }
  void record_change(uint32_t bucket) {
    if (sender_ != nullptr) sender_->record_change(bucket);
  }
  /// Keeps the answer until the backup has its bucket. False: the answer may leave now.
  bool hold(const Action& answer) { return gate_.hold(answer, progress()); }
  /// The worker's connection is lost: it repeats what is unanswered.
  void forget_held(WorkerIndex worker) { gate_.forget(worker); }

  // The event loop.
  bool owns(const transport::Connection* connection) const {
    return sender_ != nullptr && sender_->connection() == connection;
  }
  void on_completion(transport::Completion& completion);
  /// Posts pending transfers and reports changes of the backup's state.
  void advance();
  /// A transfer waits for room in the transport.
  bool waits_for_room() const { return waits_for_room_; }

 private:
  absl::Status open_sender(const ShardEndpoint& endpoint, const std::string& key);
  const BackupProgress* progress() const { return sender_ == nullptr ? nullptr : &sender_->progress(); }
  void answer_released();
  void on_sender_lost();

  ShardEnvironment& environment_;
  Partition& partition_;
  const std::function<void(const Action&)> answer_;
  std::unique_ptr<BackupSender> sender_;
  AnswerGate gate_;
  Actions released_;       ///< scratch: the answers that may leave now
  uint32_t capacity_ = 0;  ///< workers in a slot; grows with the run
  bool waits_for_room_ = false;
};

}  // namespace gradrail::ps
