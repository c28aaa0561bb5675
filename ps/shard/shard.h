#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/flight_recorder.h"
#include "base/memory.h"
#include "gradrail/clock.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/shard/backup_role.h"
#include "ps/shard/environment.h"
#include "ps/shard/exchange.h"
#include "ps/shard/handshake.h"
#include "ps/shard/partition.h"
#include "ps/shard/peer_table.h"
#include "ps/shard/primary_role.h"
#include "ps/shard/registered_parameters.h"
#include "ps/shard/task_queue.h"
#include "transport/rail_bytes.h"
#include "transport/wait_set.h"

namespace gradrail::ps {

/// Opens the transports of the options, listens on each, and adds them to the wait set.
/// Errors  FAILED_PRECONDITION: no transport could be used; the reasons are in the message.
absl::StatusOr<std::vector<ShardEndpoint>> listen(ShardEnvironment& environment, transport::WaitSet& wait_set);

/// Number of ports of a shard. With ServerOptions::data_port, ports have consecutive numbers: those of a task, in it
/// those of a shard, and in it two for each transport over a network, in the order of the list: for connections of one
/// lane, and of several.
uint32_t data_ports_of_shard(const std::vector<std::string>& transports);

/// One part of the parameters with its thread and its transport contexts; shards share nothing. This class is the event
/// loop. It gives completions of the transports to Handshake, ShardExchange, PrimaryRole and BackupRole, and runs the
/// control plane's tasks between them.
/// Errors   UNAVAILABLE: the shard is stopping. DEADLINE_EXCEEDED: its thread does not answer.
/// Threads  Public functions: any thread. They give a task to the shard's thread and wait for it, unless noted.
class Shard {
 public:
  using Options = ShardOptions;
  using Endpoint = ShardEndpoint;
  using Setup = ShardSetup;
  using Successor = ShardSuccessor;
  struct Stats {
    using Path = PathTraffic;
    uint64_t version = 0;  ///< version of bucket 0
    /// ShardProtocol::next_step() of the buckets of each fragment; UINT64_MAX without a bucket here.
    std::vector<uint64_t> next_steps;
    uint64_t updates = 0;             ///< updates of all buckets
    uint64_t dropped = 0;             ///< gradients that were too late for the sum
    uint32_t non_finite_buckets = 0;  ///< number in NonFiniteWatch
    std::map<WorkerIndex, uint64_t> non_finite_gradients;
    std::optional<Duration> learned_window;  ///< GraceWindows::learned()
    bool initialised = false;
    std::vector<WorkerIndex> waiting_for;
    std::vector<Path> paths;
    transport::RailTraffic rails;
    std::string backup;  ///< connection to the backup; "": none
  };

  /// Opens the transports and listens.
  /// Errors  FAILED_PRECONDITION: no transport could be used; the reasons are in the message.
  static absl::StatusOr<std::unique_ptr<Shard>> start(Options options);
  ~Shard();

  /// One endpoint for each transport of the options. Set once: no task.
  const std::vector<Endpoint>& endpoints() const { return endpoints_; }

  /// Begins with new parameters. Former members and connections are removed.
  absl::Status set_up(Setup setup);

  // Members. An admitted member's data connection proves that it has `key`.

  absl::Status admit(WorkerIndex worker, uint64_t incarnation, const std::string& key);
  /// The member has left or was lost: its connections close, and no step waits for it.
  void remove_member(WorkerIndex worker, uint64_t incarnation);
  /// The member's steps are done: no step waits for it, but it may still pull.
  void mark_finished(WorkerIndex worker, uint64_t incarnation);
  /// Last step of this incarnation that is done in all buckets, by fragment, also after its removal; UINT64_MAX without
  /// a bucket here. Empty: a bucket does not have the incarnation.
  absl::StatusOr<std::vector<uint64_t>> done_steps(WorkerIndex worker, uint64_t incarnation);
  /// No step waits for these workers until they are admitted again.
  void stop_expecting(const std::vector<WorkerIndex>& workers);
  /// The member returns soon, or the run ends because it was lost: its connections close, but steps wait for it. No
  /// step is then applied without its gradient while the other members are not notified yet.
  void fence(WorkerIndex worker, uint64_t incarnation);
  /// The ps task is about to end: no gradient is applied any more, and connected peers notice the end.
  void stop_serving();

  // Replication (ps/shard/primary_role.h, ps/shard/backup_role.h).

  absl::Status replicate_to(const std::vector<Endpoint>& endpoints, const std::string& key);
  void detach_backup();
  absl::Status expect_primary(const std::string& key);
  absl::Status may_take_over(const ShardClaim& seen, bool is_primary_unreachable);
  absl::Status take_over(const std::vector<Successor>& members);

  // State, for statistics, summaries and checkpoints.

  absl::StatusOr<Stats> stats();
  /// Memory of the parameters, to be read only; empty before set_up().
  absl::StatusOr<MemorySpan> parameters_memory();
  /// Content of the flight recorder.
  absl::StatusOr<std::vector<Mark>> marks();
  /// A copy of the parameters and the state between two updates, in the memory of an earlier copy.
  absl::StatusOr<Checkpoint> snapshot(Checkpoint memory = {});

 private:
  explicit Shard(Options options);

  void run();
  void serve();
  void fail(const std::string& cause);
  void dispatch(transport::Completion& completion);
  void report_altered(const transport::Completion& lost);
  void continue_peers();
  size_t wait(absl::Span<transport::Completion> completions);
  TimePoint next_deadline() const;
  absl::Status begin(const Setup& setup);
  Stats collect_stats() const;

  template <typename Task>
  auto run_in_thread(Task task) -> absl::StatusOr<decltype(task())>;
  absl::Status run_status_in_thread(std::function<absl::Status()> task);
  void run_void_in_thread(std::function<void()> task);

  // Set once.
  std::vector<Endpoint> endpoints_;

  // Any thread.
  TaskQueue tasks_;

  // Owner thread. Members are destroyed bottom up: peers and regions end before their contexts.
  ShardEnvironment environment_;
  transport::WaitSet wait_set_;
  Partition partition_;
  RegisteredParameters parameters_;
  PeerTable peers_;
  PrimaryRole primary_;
  BackupRole backup_;
  ShardExchange exchange_;
  Handshake handshake_;

  std::thread thread_;  ///< last: it starts when all else exists
};

}  // namespace gradrail::ps
