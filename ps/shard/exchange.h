#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/flight_recorder.h"
#include "gradrail/clock.h"
#include "ps/shard/environment.h"
#include "ps/shard/grace_windows.h"
#include "ps/shard/non_finite.h"
#include "ps/shard/partition.h"
#include "ps/shard/peer_table.h"
#include "ps/shard/primary_role.h"
#include "ps/shard/registered_parameters.h"
#include "ps/shard/shard_protocol.h"
#include "ps/store/store_device.h"

namespace gradrail::ps {

/// The exchange: a bucket arrives, is applied and is answered. The path of a bucket crosses four files:
///
///   shard.cc            the event loop gives the notice of the transport to on_arrival()
///   exchange.cc         on_arrival() checks the slot header
///   shard_protocol.cc   decides which gradients are applied and which workers are answered
///   exchange.cc         apply() calls the store; answer() completes an answer, post_answer() posts it
///   ../store/host_store.cc, or device_store.cc on a GPU: updates the parameters
///
/// A lone push takes a short way: push_lone() calls protocol, store and post_answer() with what is ready before the step
/// (ShardPeer::Lane).
///
/// On a GPU, apply() only begins the update. The answers of a turn wait for one mark behind its work; advance() posts
/// them.
///
/// With a backup two more files: primary_role.cc holds the answer, ../replication/backup_sender.cc puts the bucket to
/// the backup. The acknowledgement of the backup releases the answer.
///
/// Verbs    The glossary of docs/design/overview.md lists them.
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
  /// Makes the lanes of a peer that becomes active, and decides whether its pushes may take the short way.
  void make_lanes(ShardPeer& peer) const;
  /// The header of an active peer's bucket has arrived; the payload is there, too.
  void on_arrival(ShardPeer& peer, uint64_t immediate);
  /// Changes the membership in the protocol, and applies and answers what that completes. Without effect before set-up.
  void change_membership(const std::function<void(ShardProtocol&, Actions&)>& change);
  /// Completes an answer and posts it. With parameters on a GPU, or with a parent, advance() does so later.
  void answer(const Action& action);
  /// The end of a turn: posts the answers with a result of the parent. Marks the work that the turn gave to a GPU, and
  /// posts the answers with ended work.
  void advance();
  /// advance() has to be called again soon: a GPU gives no notice.
  bool waits_for_gpu() const { return !begun_.empty(); }
  /// Grace windows (GraceWindows). TimePoint::max(): none is open.
  TimePoint next_window_end() const { return grace_.next_end(); }
  std::optional<Duration> learned_window() const { return grace_.learned(); }
  void end_windows();
  /// The worker's connection is lost: it repeats what is unanswered.
  void forget(WorkerIndex worker);
  /// Removes all answers and windows: the shard begins again.
  void reset() {
    awaiting_.clear();
    begun_.clear();
    ended_.reset();
    grace_ = {};
  }
  /// The partition has started.
  void start();
  /// Posts the peer's backlog until the transport has no room.
  void post_backlog(ShardPeer& peer);

  uint64_t updates() const { return updates_; }
  /// Number of gradients that arrived too late to be summed.
  uint64_t dropped() const { return dropped_; }
  NonFiniteWatch& non_finite() { return non_finite_; }
  const NonFiniteWatch& non_finite() const { return non_finite_; }
  std::vector<Mark> marks() const { return recorder_.marks(); }

 private:
  bool push_lone(ShardPeer& peer, const SlotHeader& header, uint32_t bucket);
  absl::Status check(const ShardPeer& peer, const SlotHeader& header, uint64_t immediate) const;
  absl::StatusOr<uint32_t> payload_crc(const ShardPeer& peer, uint32_t bucket, PushFormat format) const;
  PushFormat format_of(ArrivalKind kind) const;
  void run_actions();
  bool hold_until_result(const Action& action);
  void answer_results();
  void initialise(const Action& action);
  void apply(const Action& action);
  void write_header(ShardPeer& peer, const Action& action);
  void write_crc(ShardPeer& peer, uint32_t bucket);
  void pack_parameters(ShardPeer& peer, uint32_t bucket);
  const ShardPeer& rate_leader(const Action& action) const;
  absl::Status update(const Action& action, ParameterStore::Step step, absl::Span<const GradientTerm> terms,
                      absl::Span<const float> weights, absl::Span<float* const> targets);
  uint64_t answer_bytes(const ShardPeer& peer, uint32_t bucket) const;
  void complete(const Action& action);
  void post(ShardPeer& peer, uint32_t bucket);
  bool post_answer(ShardPeer& peer, uint32_t bucket);
  const float* gradient(const ShardPeer& peer, uint32_t bucket, PushFormat format) const;
  transport::LocalSlice parameters_source(const ShardPeer& peer, uint32_t bucket) const;
  transport::RemoteSlice parameters_target(const ShardPeer& peer, uint32_t bucket) const;
  absl::InlinedVector<transport::Transfer, 2> answer_puts(const ShardPeer& peer, uint32_t bucket,
                                                          const transport::LocalSlice& copy) const;
  transport::LocalSlice private_copy(const ShardPeer& peer, uint32_t bucket) const;
  void read_failure();
  void fail_shard_on_error(const absl::Status& stored);
  void mark_arrival(WorkerIndex worker, uint32_t bucket, uint64_t step);
  void mark(Mark::Kind kind, WorkerIndex worker, uint32_t bucket, uint64_t step, TimePoint at);
  void mark(Mark::Kind kind, const Action& action);

  /// An apply, for the flight recorder, or an answer that the GPU has to finish.
  struct Begun {
    Action action;
    std::optional<DeviceTicket> mark;  ///< nullopt until the end of the turn
  };

  ShardEnvironment& environment_;
  Partition& partition_;
  const RegisteredParameters& parameters_;
  PeerTable& peers_;
  PrimaryRole& primary_;
  FlightRecorder recorder_;
  std::map<uint32_t, Actions> awaiting_;  ///< answers that wait for LaterResults, by bucket
  std::deque<Begun> begun_;               ///< sorted by decision
  std::optional<DeviceTicket> ended_;     ///< the last mark that was reached
  Actions actions_;                       ///< actions of the last decision; keeps its memory between arrivals
  TimePoint decided_at_;                  ///< time of the last decision; set only in the modes in which workers wait
  TimePoint noticed_at_;                  ///< time of on_completions(), while the recorder is on
  GraceWindows grace_;
  NonFiniteWatch non_finite_;
  bool has_failed_ = false;  ///< the store has lost the parameters
  uint64_t updates_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace gradrail::ps
