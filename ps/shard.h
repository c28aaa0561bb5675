#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/flight_recorder.h"
#include "base/memory.h"
#include "ps/ablation.h"
#include "ps/checkpoint.h"
#include "ps/optimizer.h"
#include "ps/parameter_store.h"
#include "ps/protocol.h"
#include "ps/replica_sender.h"
#include "ps/shard_map.h"
#include "ps/shard_peer.h"
#include "transport/context.h"
#include "transport/registry.h"
#include "transport/wait_set.h"

namespace gradrail::ps {

namespace proto {
class Hello;
class ReplicaHello;
}  // namespace proto

/// One part of the parameters: one thread, its own transport contexts, nothing shared with other shards.
/// Threads  Public functions: any thread (they hand a task to the shard's thread and wait for it), unless noted.
class Shard {
 public:
  struct Options {
    std::string name;                     ///< for the log: "ps/0 shard 1"
    std::vector<std::string> transports;  ///< to listen on
    std::string bind_host;                ///< for transports with network addresses
    transport::OpenOptions open;
    transport::WaitPolicy wait;
    /// Called first thing in the shard's thread: the moment to bind it. May be empty.
    std::function<void()> on_thread_start;
    MemoryPlacer place_memory;  ///< parameters and slots; called in the shard's thread
    /// Told from the shard's thread when a worker was refused, or its data connection ended and it did not come back in
    /// time; must not block.
    std::function<void(WorkerIndex, uint64_t incarnation, const std::string& cause)> on_lost;
    /// Told from the shard's thread when the parameters themselves are gone (a GPU was lost): no run goes on without
    /// them. Must not block.
    std::function<void(const std::string& cause)> on_failed;
    /// Told from the shard's thread how its standby is doing: it is level, or (`cause`) was lost. Must not block.
    std::function<void(const std::string& cause)> on_replica;
    StoreMaker make_store = make_host_store;  ///< called in the shard's thread
    size_t marks = 0;                         ///< room of the flight recorder
    Ablation ablation;
  };
  /// What one transport of this shard listens on, or why it does not.
  struct Endpoint {
    std::string transport;
    std::string address;
    std::string refused;
  };
  /// Decided by the first worker that joins.
  struct Setup {
    uint32_t shard_index = 0;
    ShardMap map;
    Mode mode;
    OptimizerConfig optimizer;
    std::shared_ptr<const Checkpoint> restored;  ///< whole model, shared by the shards of a task that read it once
  };
  struct Stats {
    uint64_t version = 0;             ///< of bucket 0
    uint64_t next_step = UINT64_MAX;  ///< ShardProtocol::next_step(); no voice without buckets
    uint64_t updates = 0;             ///< over all buckets
    uint64_t dropped = 0;             ///< gradients of a bucket that came too late to be summed
    bool initialised = false;
    std::vector<WorkerIndex> waiting_for;
    struct Path {
      std::string path;
      uint64_t bytes_in = 0;
      uint64_t bytes_out = 0;
    };
    std::vector<Path> paths;
  };

  /// Opens and listens. UNAVAILABLE when no transport could be used; the reasons are in it.
  static absl::StatusOr<std::unique_ptr<Shard>> start(Options options);
  ~Shard();

  const std::vector<Endpoint>& endpoints() const { return endpoints_; }  ///< set once

  absl::Status set_up(Setup setup);
  /// From now on a data connection that proves to know this key is this member's.
  absl::Status admit(WorkerIndex worker, uint64_t incarnation, const std::string& key);
  /// The member has left or was lost: drops its connections and slots, and nobody waits for it.
  void dismiss(WorkerIndex worker, uint64_t incarnation);
  /// The member's steps are done: nobody waits for it, but it may still pull.
  void excuse(WorkerIndex worker, uint64_t incarnation);
  /// Nobody waits for them unless they are admitted (again).
  void forgo(const std::vector<WorkerIndex>& workers);
  /// The member was lost and the run with it: drops its connections and slots, but it is still waited for, so that no
  /// step is applied without its gradient while the others are yet to hear of the end.
  void cut_off(WorkerIndex worker, uint64_t incarnation);
  /// This ps task is about to end: nobody's gradients are applied any more, and whoever is connected notices.
  void serve_no_more();
  absl::StatusOr<Stats> stats();
  /// Of its parameters, where they lie; empty before set_up(). For summaries: nobody may write there.
  absl::StatusOr<MemorySpan> parameters_memory();
  /// What the flight recorder has.
  absl::StatusOr<std::vector<Mark>> marks();
  // shard_replica.cc: a standby (ps/replica_sender.h). Until it is level, and without one, answers leave at once; from
  // then on none leaves that shows what the standby does not have, and when it is lost none at all before one of these.

  /// Errors  UNAVAILABLE: none of the endpoints could be connected to; says why.
  absl::Status replicate_to(const std::vector<Endpoint>& endpoints, const std::string& key);
  void go_alone();

  /// This shard is a standby: the one that knows this key may replicate to it.
  absl::Status expect_primary(const std::string& key);
  /// A member as the shard before had it.
  struct Successor {
    WorkerIndex worker = 0;
    uint64_t incarnation = 0;
    bool live = false;
  };
  /// Why this shard cannot go on in place of its primary: FAILED_PRECONDITION: it never was level, or somebody has seen
  /// (`versions`, of its buckets; without any: somebody ever) what it does not have. UNAVAILABLE: the primary is
  /// connected (unless `cut`).
  absl::Status may_take_over(const std::vector<uint64_t>& versions, bool cut);
  absl::Status take_over(const std::vector<Successor>& members);

  /// A copy of everything, taken between two updates, into memory of an earlier one.
  absl::StatusOr<Checkpoint> snapshot(Checkpoint memory = {});

 private:
  explicit Shard(Options options);

  // shard.cc: the thread and its tasks
  template <typename F>
  auto on_owner(F task) -> absl::StatusOr<decltype(task())>;
  void run();
  void run_tasks();
  Duration patience() const;
  void forget(WorkerIndex worker, uint64_t incarnation);
  void stop_waiting(const std::function<void(Actions&)>& change);
  void drop_all_greeted();
  absl::Status take_snapshot(Checkpoint& copy);

  // shard_peers.cc: data connections
  void handle(transport::Completion& completion);
  void on_lost(ShardPeer& peer, const std::string& cause);
  void housekeeping();
  void give_up_absent(TimePoint now);
  void retire(const ShardPeer& peer);
  /// Takes an active peer out of service; housekeeping() closes it, since completions of it may already be on their
  /// way.
  void retire_until(ShardPeer& peer, TimePoint deadline);
  void drop(ShardPeer* peer);
  static void add_path(const ShardPeer& peer, std::map<std::string, Stats::Path>& paths);

  // shard_greeting.cc: from the first message until it is active
  void on_message(ShardPeer& peer, absl::Span<const std::byte> bytes);
  void challenge(ShardPeer& peer);
  void greet(ShardPeer& peer, const proto::Hello& hello);
  void continue_mapping(ShardPeer& peer);
  absl::Status welcome(ShardPeer& peer);
  absl::Status probe_mapping(const ShardPeer& peer);
  void pin(ShardPeer& peer);
  void map_device(ShardPeer& peer);
  void on_check(ShardPeer& peer, uint64_t immediate);
  void answer_check(ShardPeer& peer);
  void activate(ShardPeer& peer);
  void refuse(ShardPeer& peer, const std::string& why);

  // shard_gpu.cc: parameters and slots in GPU memory that network devices reach
  void register_gpu();
  void register_gpu(size_t context_index, GpuDirect way);
  absl::Status make_gpu_slots(ShardPeer& peer);
  bool uses_gpu(const ShardPeer& peer) const { return peer.payload.region != nullptr; }
  std::string check_mapped(const DeviceVariables& mapped, uint64_t seed);
  std::string compare_arrived_check(ShardPeer& peer);
  transport::LocalSlice check_answer(const ShardPeer& peer) const;
  absl::StatusOr<uint32_t> payload_crc(const ShardPeer& peer, uint32_t bucket);

  // shard_exchange.cc: the hot path
  void on_arrival(ShardPeer& peer, uint64_t immediate);
  absl::Status check(const ShardPeer& peer, const SlotHeader& header, uint64_t immediate);
  void run_actions();
  void initialise(const Action& action);
  void apply_update(const Action& action);
  void answer(const Action& action);
  bool send_answer(ShardPeer& peer, uint32_t bucket);
  void send_backlog(ShardPeer& peer);
  const float* gradient(const ShardPeer& peer, uint32_t bucket) const;
  void must(const absl::Status& stored);
  void apply_in_part(ElementRange where, absl::Span<const float*> gradients, absl::Span<float*> targets,
                     uint64_t version);
  void mark(Mark::Kind kind, const Action& action);

  // shard_replica.cc
  bool holds(const Action& action);
  void release(uint32_t bucket);
  void release_all();
  void forget_held(WorkerIndex worker);
  void changed(uint32_t bucket);
  void handle_replica(transport::Completion& completion);
  void watch_replica();
  void lose_replica();
  absl::Status open_replica(const Endpoint& endpoint, const std::string& key);
  void greet_replica(ShardPeer& peer, const proto::ReplicaHello& hello);
  absl::Status welcome_replica(ShardPeer& peer, const proto::ReplicaHello& hello);
  void take_replica(ShardPeer& peer, uint64_t immediate);
  void answer_replica(ShardPeer& peer);
  ShardPeer* primary() const;
  void mark_arrival(WorkerIndex worker, uint32_t bucket, uint64_t step);

  ElementRange range() const { return setup_.map.shard(setup_.shard_index); }
  uint32_t bucket_count() const { return setup_.map.bucket_count(setup_.shard_index); }
  ElementRange bucket_range(uint32_t bucket) const { return setup_.map.bucket(setup_.shard_index, bucket); }
  const float* parameters_of(uint32_t bucket) const;
  /// Where an answer with a checksum lies while it is sent, for others' pushes go on changing the parameters: the slot,
  /// whose gradient has been used. No region: it is not copied.
  transport::LocalSlice checked_copy(const ShardPeer& peer, uint32_t bucket) const;
  ShardPeer* peer_of(WorkerIndex worker) const;

  // Set once.
  Options options_;
  std::vector<Endpoint> endpoints_;

  // Any thread, under the mutex.
  std::mutex tasks_mutex_;
  std::vector<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::atomic<bool> tasks_waiting_ = false;  ///< looked at without the mutex on each turn

  // Owner thread. Peers and regions go before the contexts they belong to: members are destroyed bottom up.
  std::vector<std::unique_ptr<transport::Context>> contexts_;
  transport::WaitSet wait_set_;
  bool is_set_up_ = false;
  Setup setup_;
  std::unique_ptr<ShardProtocol> protocol_;
  transport::RegistrationBudget registered_;
  std::unique_ptr<ParameterStore> store_;
  std::vector<std::unique_ptr<transport::MemoryRegion>> parameters_regions_;  ///< per context
  struct GpuRegion {
    GpuDirect way{};
    std::unique_ptr<transport::MemoryRegion> parameters;  ///< null: this context does not reach the store's GPU
  };
  std::vector<GpuRegion> gpu_regions_;  ///< per context
  uint64_t gpu_answer_seed_ = 0;        ///< of the pattern behind the parameters there
  bool failed_ = false;                 ///< the store; no answer leaves any more
  uint64_t updates_ = 0;
  uint64_t dropped_ = 0;
  FlightRecorder recorder_;
  TimePoint noticed_at_;  ///< when the transport gave what is being handled; while the recorder is on
  TimePoint decided_at_;  ///< when `actions_` were, before any of them was done; only in modes that have workers wait
  Actions actions_;
  struct Admission {
    uint64_t incarnation = 0;
    std::string key;
  };
  std::map<WorkerIndex, Admission> admitted_;
  std::unordered_map<const transport::Connection*, std::unique_ptr<ShardPeer>> peers_;
  std::vector<ShardPeer*> by_worker_;  ///< active peers
  struct Absent {                      ///< a member whose data connection was lost
    WorkerIndex worker = 0;
    uint64_t incarnation = 0;
    TimePoint deadline;
    std::string cause;
  };
  std::vector<Absent> absent_;
  std::unique_ptr<ReplicaSender> replica_;  ///< to the standby
  bool replica_in_need_ = false;            ///< it waits for room
  bool replica_unsure_ = false;             ///< a standby that was level is lost, and may have taken over
  bool replica_told_level_ = false;
  uint32_t replica_capacity_ = 0;
  struct Held {
    Action answer;
    uint64_t change = 0;  ///< of the bucket, that the standby must have
  };
  std::vector<std::vector<Held>> held_;  ///< per bucket
  std::string primary_key_;              ///< of whom this shard is the standby; "": nobody
  bool was_level_ = false;               ///< it has everything that its primary has answered
  bool was_outdated_ = false;            ///< somebody has seen more
  size_t unsettled_ = 0;  ///< peers that are not active, or have a backlog: housekeeping() looks after them
  std::map<std::string, Stats::Path> past_paths_;

  std::thread thread_;  ///< last: starts when all else is there
};

}  // namespace gradrail::ps
