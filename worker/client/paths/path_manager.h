#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradrail/client.h"
#include "gradrail/clock.h"
#include "transport/completion.h"
#include "transport/rail_bytes.h"
#include "transport/registration.h"
#include "transport/wait_set.h"
#include "worker/client/model_memory.h"
#include "worker/client/paths/shard_link.h"
#include "worker/client/run_failure.h"
#include "worker/client/session/identity.h"
#include "worker/client/telemetry.h"

namespace gradrail::ps::proto {
class DescribeReply;
}  // namespace gradrail::ps::proto

namespace gradrail::worker {

/// The user of the paths: the exchange. PathManager makes all calls within its functions that wait or poll.
class PathEvents {
 public:
  virtual ~PathEvents() = default;
  /// A put of the shard with this immediate has arrived on the path in use.
  virtual void on_answer(ShardLink& link, uint64_t immediate) = 0;
  /// The path of this link was lost and another one has taken its place. Puts on the lost path may not have arrived:
  /// the exchange sends again all buckets without an answer.
  virtual void on_path_lost(ShardLink& link) = 0;
};

/// The data connections of a client: one path to each shard. A path is chosen among the candidates, replaced when it is
/// lost, and closed when a better one works again.
///
/// Source files: path_manager.cc opens contexts and delivers events, path_choice.cc tests candidates, path_recovery.cc
/// replaces lost paths, path_failback.cc probes better ones.
///
/// Invariants
///   1. A path becomes the one in use only after a pattern has crossed it both ways (ShardPath::Phase::active).
///   2. At most one path of a link is in use, and at most one is probed beside it. With variables on a GPU one path of
///      all links is probed: GPU memory has space for one pattern.
///   3. A context without a path is closed before a lost path is replaced: the library of a device may keep state of
///      connections that failed.
/// Threads  wake(): any thread. The rest: owner thread.
class PathManager {
 public:
  using Links = std::vector<std::unique_ptr<ShardLink>>;
  /// Calls over the control plane.
  struct ControlCalls {
    /// Whether the ps has removed this worker from the run, and why (ABORTED). OK: it has not.
    std::function<absl::Status(uint32_t ps_index)> why_removed;
    /// Whether the ps answers. UNAVAILABLE: it was lost.
    std::function<absl::Status(uint32_t ps_index)> answers;
  };

  /// All references outlive this; `events` is first used by a function that polls.
  PathManager(const ClientOptions& options, const Identity& identity, ModelMemory& memory, RunFailure& failure,
              Telemetry& telemetry, PathEvents& events, ControlCalls calls);

  // Set-up.
  Links& links() { return links_; }
  const Links& links() const { return links_; }
  void add(std::unique_ptr<ShardLink> link) { links_.push_back(std::move(link)); }
  /// Decides the candidates of a link from the description of its server.
  void set_server(ShardLink& link, const ps::proto::DescribeReply& described);
  /// Errors  FAILED_PRECONDITION: another start would end in the same way. UNAVAILABLE: it might not.
  absl::Status connect_all(TimePoint deadline);
  /// Closes the paths to a lost ps task. Its successor has other addresses and keys. An answer of the lost one that
  /// arrives later must not count: the successor may not have that update.
  void close_paths(uint32_t ps_index);
  /// Opens the path to a server that has replaced the link's former one, after close_paths(), and reports the former
  /// path as lost.
  absl::Status connect_again(ShardLink& link, TimePoint deadline);
  /// Marks that the run has exchanged over these paths: a way that fails later has worked before.
  void set_started() { started_ = true; }
  /// Closes all paths and contexts, and with them the registrations of memory, before this worker joins again.
  void clear();

  // Events.
  void wake() { wait_set_.wake(); }
  /// Delivers events that have arrived, and returns their number; never blocks.
  size_t poll_events();
  /// The same with WaitSet::poll_briefly().
  size_t poll_briefly();
  /// Blocks until events arrive, wake() or the deadline; returns their number.
  size_t wait_events(TimePoint deadline);
  /// Whether a shard has reported the end of a lower worker; resets the flag. This worker may be the chief now.
  bool take_lower_left() { return std::exchange(lower_left_, false); }

  // Loss and return of paths.
  bool has_lost_path() const { return path_lost_; }
  /// Blocks up to 20 s for each lost path.
  /// Errors  the run's failure, CANCELLED.
  absl::Status replace_lost_paths();
  /// Starts or completes probes that are due. Between two exchanges only: a change of paths loses what is under way.
  void maybe_failback(TimePoint now) {
    if (now >= next_failback_) failback(now);
  }
  /// Continues probes beside an exchange, without blocking; true while one needs to be called again soon.
  bool advance_probes();

  // Statistics.
  /// Adds paths, bytes and registrations.
  void describe(ClientStats& stats) const;
  std::string gpu_text() const;

 private:
  // path_manager.cc
  /// The address for the next path over a candidate, and the context that reaches it.
  struct Target {
    std::string transport;
    std::string address;
    OpenContext::Lanes lanes = OpenContext::Lanes::one;
  };
  absl::StatusOr<Target> target(const ShardLink& link, size_t candidate) const;
  absl::StatusOr<OpenContext*> open_context(const Target& target);
  absl::StatusOr<std::unique_ptr<transport::Context>> open_transport(const Target& target) const;
  void close_unused_contexts();
  absl::Status reach_gpu(OpenContext& context, GpuTransfer way);
  size_t deliver_all(size_t count);
  void deliver(const transport::Completion& completion);

  void warn_of_slower_paths() const;

  // path_choice.cc
  absl::Status connect(ShardLink& link, TimePoint deadline);
  absl::Status try_candidates(ShardLink& link, TimePoint deadline);
  absl::StatusOr<std::unique_ptr<ShardPath>> open_path(ShardLink& link, OpenContext& context,
                                                       const std::string& address, GpuTransfer way, TimePoint deadline);
  absl::Status establish(ShardPath& path, ShardPath::Phase until, TimePoint deadline);
  absl::Status try_candidate(ShardLink& link, size_t candidate, TimePoint deadline);
  absl::Status try_gpu_transfer(ShardLink& link, size_t candidate, GpuTransfer way, TimePoint deadline);
  absl::Status check_rdma(const ShardPath& path) const;
  void use(ShardLink& link, std::unique_ptr<ShardPath> path, size_t candidate);

  // path_recovery.cc
  absl::Status replace(ShardLink& link);

  // path_failback.cc
  void failback(TimePoint now);
  bool is_probing() const;
  void drop_probes();
  void start_probe(ShardLink& link);
  absl::StatusOr<std::unique_ptr<ShardPath>> open_probe(ShardLink& link, size_t candidate);
  void switch_to_probe(ShardLink& link, TimePoint deadline);
  void end_probe(ShardLink& link, const std::string& why);

  // Set once.
  const ClientOptions& options_;
  const Identity& identity_;
  ModelMemory& memory_;
  RunFailure& failure_;
  Telemetry& telemetry_;
  PathEvents& events_;
  const std::function<absl::Status(uint32_t)> why_removed_;
  const std::function<absl::Status(uint32_t)> answers_;

  // Owner thread. Links before contexts before the wait set: the destructor ends them in reverse order.
  transport::WaitSet wait_set_;
  std::vector<std::unique_ptr<OpenContext>> contexts_;
  std::map<std::string, ShardLink::Bytes> path_bytes_;  ///< indexed by the name of the path; entries never move
  transport::RailTraffic closed_rails_;                 ///< bytes of contexts that are closed
  Links links_;
  /// Events of one poll: usually more than one exchange has in flight. A member avoids its construction at each wait.
  /// No receiver of an event polls, so one buffer is enough.
  std::array<transport::Completion, 32> arrived_;
  bool shard_on_gpu_ = false;  ///< at least one shard computes on a GPU
  bool started_ = false;
  bool lower_left_ = false;
  bool path_lost_ = false;                      ///< at least one path in use has failed
  TimePoint next_failback_ = TimePoint::max();  ///< time of the next search for better paths
  RegistrationBudget registered_;
};

}  // namespace gradrail::worker
