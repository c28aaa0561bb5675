#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace gradrail::ps {

/// Counts the changes of a primary's buckets that its backup has, and names the bucket to be sent next. Pure:
/// BackupSender carries out the transfers, and tests/ps/prove searches all orders of events.
///
/// Invariants
///   1. One transfer of a bucket is under way at a time. The next one carries updates that were applied meanwhile.
///   2. After is_holding() begins, is_behind() is true of every bucket if the backup lacks its present state.
///   3. The phase is `level` when the backup has acknowledged all state of the time at which is_holding() began. The
///      backup then has everything that an answer has shown which was not held.
/// Threads  Owner thread of the shard.
class BackupProgress {
 public:
  enum class Phase : uint8_t {
    handshake,  ///< the backup has not sent Welcome
    filling,    ///< the backup does not have every bucket yet
    leveling,   ///< answers are held; the backup lacks updates from before
    level,      ///< the backup can take over at any time
    lost,       ///< the connection failed
  };

  explicit BackupProgress(size_t bucket_count) : buckets_(bucket_count) {}

  /// Queues every bucket: the backup has sent Welcome.
  void begin_to_fill();
  void fail() { phase_ = Phase::lost; }
  /// Counts a change of the bucket, which the backup does not have yet.
  void record_change(uint32_t bucket);

  /// A transfer: the slot of next() is filled, then put. Between the two it may wait for room in the transport.
  bool has_next() const { return !dirty_.empty(); }
  uint32_t next() const { return dirty_.front(); }
  bool is_filled() const { return is_front_filled_; }
  /// The slot of next() holds the present state.
  void on_filled();
  void on_put();
  /// False: no transfer of the bucket is under way.
  [[nodiscard]] bool on_acknowledged(uint64_t bucket);

  /// Whether the message that the backup is level has not been sent yet.
  bool is_level_unannounced() const { return is_level_unannounced_; }
  void on_announced() { is_level_unannounced_ = false; }

  Phase phase() const { return phase_; }
  bool is_holding() const { return phase_ == Phase::leveling || phase_ == Phase::level; }
  /// Number of changes until now, and the last one that the backup has acknowledged.
  uint64_t changes(uint32_t bucket) const { return buckets_[bucket].changes; }
  uint64_t acknowledged(uint32_t bucket) const { return buckets_[bucket].acknowledged; }
  bool is_behind(uint32_t bucket) const { return acknowledged(bucket) < changes(bucket); }

 private:
  friend class StateReader;  // tests/ps/prove

  struct Bucket {
    uint64_t changes = 0;       ///< count from 1: the first one is the state at the connection
    uint64_t sent = 0;          ///< number of changes in the transfer under way, or in the last one
    uint64_t acknowledged = 0;  ///< changes that the backup has
    uint64_t level_at = 0;      ///< number of changes that the backup must have to be level
    bool queued = false;        ///< the bucket is in dirty_
    bool in_flight = false;
  };

  void begin_to_hold();
  void settle_level();

  Phase phase_ = Phase::handshake;
  std::vector<Bucket> buckets_;
  std::deque<uint32_t> dirty_;         ///< buckets to send; none of them is in flight
  bool is_front_filled_ = false;       ///< the slot of dirty_.front() is filled and waits for room only
  size_t missing_ = 0;                 ///< buckets that the backup lacks for the next phase
  bool is_level_unannounced_ = false;  ///< the message that the backup is level has not been sent yet
};

}  // namespace gradrail::ps
