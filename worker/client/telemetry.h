#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/flight_recorder.h"
#include "gradrail/client.h"
#include "gradrail/clock.h"
#include "worker/client/published_stats.h"

namespace gradrail::ps::proto {
class Member;
class Ping;
}  // namespace gradrail::ps::proto

namespace gradrail::worker {

class ControlLink;

/// Measurements of one client: counters, the marks of its flight recorder, and their translation into the clock of
/// ps task 0. The other classes of the client report events here; nothing here changes what they do.
/// Threads  Owner thread, unless stated otherwise.
class Telemetry {
 public:
  using Controls = absl::Span<const std::unique_ptr<ControlLink>>;

  /// `options` outlives this.
  explicit Telemetry(const ClientOptions& options) : options_(options), recorder_(options.hooks.marks) {}

  // Events of an exchange.
  void begin_exchange(TimePoint at) { published_.begun(at); }
  void end_exchange() { published_.ended(); }
  void mark(Mark::Kind kind, uint64_t step, TimePoint at) {
    if (recorder_.is_on()) recorder_.record({.step = step, .worker = options_.task_index, .kind = kind}, at);
  }
  void mark(Mark::Kind kind, uint64_t step, uint32_t shard_index, uint32_t bucket_index) {
    recorder_.record(
        {.step = step, .worker = options_.task_index, .shard = shard_index, .bucket = bucket_index, .kind = kind});
  }
  /// `waited`: how long the slowest bucket waited at its shard for gradients of other workers.
  void count_exchange(Duration took, uint64_t waited_ns);
  void count_staleness(uint64_t updates);
  void count_dropped() { ++counters_.dropped; }

  // Events of paths and servers.
  void count_move() { ++counters_.moves; }
  void count_return() { ++counters_.returns; }
  void count_takeover() { ++counters_.takeovers; }
  void count_rejoin(uint64_t repeated_steps);

  /// The counters alone; the client adds what its paths and its memory report.
  const ClientStats& counters() const { return counters_; }
  std::vector<Mark> marks() const { return recorder_.marks(); }

  /// Whether other threads are due a fresh copy of the statistics.
  bool publish_is_due(TimePoint now) const { return published_.is_due(now); }
  void publish(ClientStats stats, TimePoint now) { published_.publish(std::move(stats), now); }

  /// Calls ClientHooks::dump when a ps or a signal has requested a dump since the last call.
  void answer_dump();
  /// The number of requests at a join of ps task 0. Another process counts from 0.
  /// Threads  Any thread.
  void begin_dump_count(uint64_t at_join) { dump_count_seen_ = at_join; }

  /// Sends this worker's marks to ps task 0, or collects those of all tasks from there.
  absl::Status upload_trace(Controls controls, const ps::proto::Member& member);
  absl::StatusOr<std::vector<TaskTrace>> gather_trace(Controls controls, const ps::proto::Member& member);

  // Threads  Any thread.
  void report(ps::proto::Ping& ping) const;
  /// Takes the number of dumps requested until now from a heartbeat's reply. True if it has grown: the owner thread may
  /// be blocked in wait(), and must be woken.
  bool on_dump_count(uint64_t requested);
  ClientStats published_stats() const { return published_.stats(); }
  Duration under_way() const { return published_.under_way(Clock::now()); }

 private:
  const ClientOptions& options_;

  // Owner thread.
  ClientStats counters_;
  FlightRecorder recorder_;
  uint64_t dumps_answered_ = 0;

  // Any thread.
  PublishedStats published_;
  std::atomic<uint64_t> dump_count_seen_ = 0;
  std::atomic<uint64_t> dumps_requested_ = 0;
};

}  // namespace gradrail::worker
