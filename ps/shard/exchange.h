#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/flight_recorder.h"
#include "ps/shard/environment.h"
#include "ps/shard/partition.h"
#include "ps/shard/peer_table.h"
#include "ps/shard/primary_role.h"
#include "ps/shard/registered_parameters.h"
#include "ps/shard/shard_protocol.h"

namespace gradrail::ps {

/// The exchange: a bucket arrives, is applied and is answered. The path of a bucket crosses four files:
///
///   shard.cc            the event loop gives the notice of the transport to on_arrival()
///   exchange.cc         on_arrival() checks the slot header
///   shard_protocol.cc   decides which gradients are applied and which workers are answered
///   exchange.cc         apply() calls the store; answer() completes an answer, post_answer() posts it
///   ../store/host_store.cc, or device_store.cc on a GPU: updates the parameters
///
/// With a backup two more files: primary_role.cc holds the answer, ../replication/backup_sender.cc puts the bucket to
/// the backup. The acknowledgement of the backup releases the answer.
///
/// Verbs    docs/design/exchange.md lists them.
/// Errors   A wrong header refuses its peer. An error of the store fails the shard: it carries out no action any more.
/// Threads  Owner thread of the shard.
class ShardExchange {
 public:
  ShardExchange(ShardEnvironment& environment, Partition& partition, const RegisteredParameters& parameters,
                PeerTable& peers, PrimaryRole& primary);

  /// The transport has returned completions. The flight recorder uses the time for those that are handled next.
  void on_completions() {
    if (recorder_.is_on()) noticed_at_ = Clock::now();
  }
  /// The header of an active peer's bucket has arrived; the payload is there, too.
  void on_arrival(ShardPeer& peer, uint64_t immediate);
  /// Changes the membership in the protocol, and applies and answers what that completes. Without effect before set-up.
  void change_membership(const std::function<void(ShardProtocol&, Actions&)>& change);
  /// Completes an answer and posts it.
  void answer(const Action& action);
  /// Posts the peer's backlog until the transport has no room.
  void post_backlog(ShardPeer& peer);

  uint64_t updates() const { return updates_; }
  /// Number of gradients that arrived too late to be summed.
  uint64_t dropped() const { return dropped_; }
  std::vector<Mark> marks() const { return recorder_.marks(); }

 private:
  absl::Status check(const ShardPeer& peer, const SlotHeader& header, uint64_t immediate) const;
  absl::StatusOr<uint32_t> payload_crc(const ShardPeer& peer, uint32_t bucket) const;
  void run_actions();
  void initialise(const Action& action);
  void apply(const Action& action);
  void write_header(ShardPeer& peer, const Action& action);
  const float* fresh_parameters(uint32_t bucket);
  bool post_answer(ShardPeer& peer, uint32_t bucket);
  const float* gradient(const ShardPeer& peer, uint32_t bucket) const;
  transport::LocalSlice parameters_source(const ShardPeer& peer, uint32_t bucket);
  transport::LocalSlice private_copy(const ShardPeer& peer, uint32_t bucket) const;
  void fail_shard_on_error(const absl::Status& stored);
  void mark_arrival(WorkerIndex worker, uint32_t bucket, uint64_t step);
  void mark(Mark::Kind kind, const Action& action);

  ShardEnvironment& environment_;
  Partition& partition_;
  const RegisteredParameters& parameters_;
  PeerTable& peers_;
  PrimaryRole& primary_;
  FlightRecorder recorder_;
  Actions actions_;          ///< of the last decision; keeps its memory from one arrival to the next
  TimePoint decided_at_;     ///< time of the last decision; set only in the modes in which workers wait
  TimePoint noticed_at_;     ///< time of on_completions(), while the recorder is on
  bool has_failed_ = false;  ///< the store has lost the parameters
  uint64_t updates_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace gradrail::ps
