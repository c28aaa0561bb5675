#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "ps/control.pb.h"
#include "ps/parameter_store.h"
#include "ps/protocol.h"
#include "ps/replica_layout.h"
#include "transport/context.h"
#include "transport/registration.h"

namespace gradrail::ps {

/// A shard's connection to its standby: puts there whatever has changed, bucket by bucket. One transfer of a bucket is
/// under way at a time; what is applied meanwhile goes with the next one.
///
/// Invariants
///   1. A slot that was put is not written before the standby has answered.
///   2. From holding() on, is_behind() is true of every bucket whose present state the standby does not have.
///   3. The standby is told that it is level when it has had everything that was there when holding() began: from then
///      on it has whatever an answer that was not held has shown.
/// Threads  Owner thread of the shard.
class ReplicaSender {
 public:
  enum class Phase : uint8_t {
    greeting,  ///< the standby has not said Welcome
    filling,   ///< it does not have every bucket yet
    leveling,  ///< answers are held; it lacks what came before they were
    level,     ///< it can take over at any time
    lost,      ///< why() says why
  };

  /// Connects; the shard's parts outlive this.
  static absl::StatusOr<std::unique_ptr<ReplicaSender>> open(transport::Context& context, const std::string& address,
                                                             const std::string& key, uint32_t shard_index,
                                                             ReplicaLayout layout, ShardProtocol& protocol,
                                                             ParameterStore& store,
                                                             transport::RegistrationBudget& budget, TimePoint deadline);
  ~ReplicaSender();

  /// The bucket is not what the standby has any more.
  void changed(uint32_t bucket);
  /// Which of its changes the standby has, and how many there are.
  uint64_t acknowledged(uint32_t bucket) const { return buckets_[bucket].acknowledged; }
  uint64_t changes(uint32_t bucket) const { return buckets_[bucket].changes; }
  bool is_behind(uint32_t bucket) const { return acknowledged(bucket) < changes(bucket); }
  bool holding() const { return phase_ == Phase::leveling || phase_ == Phase::level; }

  /// Posts what there is to post. True while something waits for room: call again soon.
  bool advance();

  // What the transport reported.
  void on_message(absl::Span<const std::byte> bytes);
  /// Returns the bucket that the standby has; nothing where it said nonsense.
  std::optional<uint32_t> on_notice(uint64_t immediate);
  void on_lost(std::string_view cause) { fail(cause); }

  Phase phase() const { return phase_; }
  const std::string& why() const { return why_; }
  const transport::Connection* connection() const { return connection_; }
  std::string describe() const { return connection_->describe(); }

 private:
  struct Bucket {
    uint64_t changes = 0;  ///< so many, from 1: what it began with
    uint64_t sent = 0;     ///< changes that the transfer under way, or the last one, shows
    uint64_t acknowledged = 0;
    uint64_t level_at = 0;  ///< changes that level asks for
    bool queued = false;    ///< in dirty_
    bool in_flight = false;
  };

  ReplicaSender(transport::Context& context, ReplicaLayout layout, ShardProtocol& protocol, ParameterStore& store)
      : context_(context), layout_(std::move(layout)), protocol_(protocol), store_(store) {}
  void greet(const std::string& challenge);
  void take_welcome(const std::string& slots_key);
  absl::Status fill(uint32_t bucket);
  bool put(uint32_t bucket);
  void begin_to_hold();
  void settle_level();
  void fail(std::string_view why);

  transport::Context& context_;
  const ReplicaLayout layout_;
  ShardProtocol& protocol_;
  ParameterStore& store_;
  transport::RegisteredMemory slots_;    ///< what goes out
  transport::RegisteredMemory notices_;  ///< where the standby's land
  transport::Connection* connection_ = nullptr;
  transport::RemoteRegion remote_{};
  std::string key_;  ///< that the standby knows it by
  uint32_t shard_index_ = 0;
  std::optional<proto::ToShard> hello_;  ///< that is to be sent yet
  Phase phase_ = Phase::greeting;
  std::string why_;
  std::vector<Bucket> buckets_;
  BucketState state_;           ///< scratch
  std::deque<uint32_t> dirty_;  ///< to be sent, none of which is in flight
  bool filled_first_ = false;   ///< the first of dirty_ is in its slot and waits for room alone
  size_t missing_ = 0;          ///< buckets that the standby lacks for the next phase
  bool says_level_ = false;     ///< to be sent yet
};

}  // namespace gradrail::ps
