#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "ps/replication/backup_layout.h"
#include "ps/store/parameter_store.h"
#include "transport/context.h"
#include "transport/registration.h"

namespace gradrail::ps {

/// The primary's connection to its backup: sends each bucket that has changed. One transfer of a bucket is under way at
/// a time; the next one carries updates that were applied meanwhile.
///
/// Invariants
///   1. A slot that was put is not written before the backup has acknowledged it.
///   2. From is_holding() on, is_behind() is true of every bucket if the backup lacks its present state.
///   3. The primary declares the backup level when the backup has acknowledged all state of the moment at which
///      is_holding() began. From then on the backup has everything that an answer has shown which was not held.
/// Threads  Owner thread of the shard.
class BackupSender {
 public:
  enum class Phase : uint8_t {
    handshake,  ///< the backup has not sent Welcome
    filling,    ///< the backup does not have every bucket yet
    leveling,   ///< answers are held; the backup lacks updates from before
    level,      ///< the backup can take over at any time
    lost,       ///< why() has the cause
  };
  /// Reads the state of a bucket's exchanges.
  using ExportBucket = std::function<void(uint32_t bucket, BucketState& state)>;

  struct Options {
    std::string address;
    std::string key;  ///< proves to the backup that this is its primary
    uint32_t shard_index = 0;
    BackupLayout layout;
    ExportBucket export_bucket;
    TimePoint deadline;  ///< for the connection
  };

  /// Connects. The context, the store and the budget must outlive the sender.
  static absl::StatusOr<std::unique_ptr<BackupSender>> open(transport::Context& context, ParameterStore& store,
                                                            transport::RegistrationBudget& budget, Options options);
  ~BackupSender();

  /// Counts a change of the bucket, which the backup does not have yet.
  void record_change(uint32_t bucket);
  /// The number of changes so far, and the last one that the backup has acknowledged.
  uint64_t changes(uint32_t bucket) const { return buckets_[bucket].changes; }
  uint64_t acknowledged(uint32_t bucket) const { return buckets_[bucket].acknowledged; }
  bool is_behind(uint32_t bucket) const { return acknowledged(bucket) < changes(bucket); }
  bool is_holding() const { return phase_ == Phase::leveling || phase_ == Phase::level; }

  /// Posts pending transfers. True while one of them waits for room in the transport: call again soon.
  bool advance();

  // Events of the transport.
  void on_message(absl::Span<const std::byte> bytes);
  /// Returns the bucket that the backup has acknowledged; nothing when the notice was wrong.
  std::optional<uint32_t> on_acknowledged(uint64_t immediate);
  void on_lost(std::string_view cause) { fail(cause); }

  Phase phase() const { return phase_; }
  const std::string& why() const { return why_; }
  const transport::Connection* connection() const { return connection_; }
  std::string describe() const { return connection_->describe(); }

 private:
  struct Bucket {
    uint64_t changes = 0;       ///< from 1: the first one is the state at the connection
    uint64_t sent = 0;          ///< number of changes in the transfer under way, or in the last one
    uint64_t acknowledged = 0;  ///< changes that the backup has
    uint64_t level_at = 0;      ///< number of changes that the backup must have to be level
    bool queued = false;        ///< in dirty_
    bool in_flight = false;
  };

  BackupSender(transport::Context& context, ParameterStore& store, Options options)
      : context_(context), store_(store), options_(std::move(options)) {}
  void start_handshake(const std::string& challenge);
  void accept_welcome(const std::string& slots_key);
  absl::Status fill_slot(uint32_t bucket);
  bool put_slot(uint32_t bucket);
  void begin_to_hold();
  void settle_level();
  void fail(std::string_view why);

  transport::Context& context_;
  ParameterStore& store_;
  const Options options_;
  transport::RegisteredMemory slots_;    ///< source of the transfers
  transport::RegisteredMemory notices_;  ///< target of the backup's acknowledgements
  transport::Connection* connection_ = nullptr;
  transport::RemoteRegion remote_{};
  std::string unsent_;  ///< message that waits for room; "": none
  Phase phase_ = Phase::handshake;
  std::string why_;
  std::vector<Bucket> buckets_;
  BucketState state_;                  ///< scratch: keeps its memory from one bucket to the next
  std::deque<uint32_t> dirty_;         ///< to be sent; none of them is in flight
  bool is_front_filled_ = false;       ///< the slot of dirty_.front() is filled and waits for room only
  size_t missing_ = 0;                 ///< buckets that the backup lacks for the next phase
  bool is_level_unannounced_ = false;  ///< the message that the backup is level is to be sent
};

}  // namespace gradrail::ps
