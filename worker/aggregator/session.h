#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/rate_limited_log.h"
#include "ps/shard/backup_role.h"
#include "ps/shard/environment.h"
#include "ps/shard/handshake.h"
#include "ps/shard/partition.h"
#include "ps/shard/peer_table.h"
#include "ps/shard/registered_parameters.h"
#include "ps/shard/task_queue.h"
#include "transport/wait_set.h"
#include "worker/aggregator/group_protocol.h"
#include "worker/aggregator/shard_side.h"

namespace gradrail::aggregator {

/// One group of workers of one run at one shard, with a thread of its own. For the workers it is the shard: they open
/// data connections by the same handshake. For the shard it is one worker: it has one connection and pushes sums.
///
///   worker ─ push ─▶ on_arrival ─ GroupProtocol ─▶ forward: sum ─ push ─▶ shard
///   worker ◀─ parameters, header ── answer ◀── on_answer ◀─ parameters ── shard
///
/// The shard stores parameters into the memory from which the answers to the workers leave. In sync the next step of a
/// bucket changes them. All workers of the session have then pushed it, and had received the answer before.
///
/// Losses   A worker leaves with its connection. The connection to the shard has a fixed list of members: for a worker
///          that joins it is opened again. Requests without an answer are then summed and sent again. If the shard
///          cannot be reached, the connections of the workers end, and they take another path.
/// Threads  start(), admit(), stats(), idle_since(): any thread.
class Session {
 public:
  struct Options {
    ps::ShardOptions listen;
    ShardSide::Options connect;
    ps::ShardSetup setup;
    ShardTarget target;
    uint32_t first_worker = 0;  ///< of the group
    uint32_t group_size = 0;    ///< workers of the group at most
    std::function<void(const std::string& text)> log;
  };

  /// Errors  Those of ps::listen() and of memory.
  static absl::StatusOr<std::unique_ptr<Session>> start(Options options);
  ~Session();

  const std::string& name() const { return environment_.options.name; }
  const std::vector<ps::ShardEndpoint>& endpoints() const { return endpoints_; }
  /// Admits the data connections of a worker.
  /// Errors  PERMISSION_DENIED: the same incarnation has another key. UNAVAILABLE: the session does not answer, or has
  ///         just sent its workers away.
  absl::Status admit(const GroupMember& member);
  struct Stats {
    size_t workers = 0;
    std::vector<ps::PathTraffic> paths;  ///< of the workers, and the connection "to shard"
  };
  /// Empty while the session does not answer.
  Stats stats();
  /// Since when there is no connection of a worker; max: there is one.
  TimePoint idle_since() const { return idle_since_.load(); }

 private:
  /// Workers of a group connect at about the same time: one connection to the shard serves all of them.
  static constexpr Duration kSettle = std::chrono::milliseconds(50);

  explicit Session(Options options);

  absl::Status open();
  void run();
  absl::Status check_reach();
  void refuse_workers(const std::string& why);
  absl::Status admit_in_thread(const GroupMember& member);
  void dispatch(transport::Completion& completion);
  void on_message(ps::ShardPeer& peer, absl::Span<const std::byte> message);
  void on_inactive(const ps::ShardPeer& peer);
  void continue_peers();
  TimePoint next_deadline(TimePoint now) const;

  // The side of the workers.
  void on_arrival(ps::ShardPeer& peer, uint64_t immediate);
  absl::Status check(const ps::ShardPeer& peer, const ps::SlotHeader& header, uint64_t immediate) const;
  bool has_rate_of_others(ps::ShardPeer& peer, const ps::SlotHeader& header);
  ps::PushFormat format_of(ps::ArrivalKind kind) const;
  const float* payload(const ps::ShardPeer& peer, uint32_t bucket, ps::ArrivalKind kind) const;
  void answer(uint32_t slot, uint32_t bucket, const ps::ReturnHeader& from_shard);
  bool post_answer(ps::ShardPeer& peer, uint32_t bucket);
  void post_backlog(ps::ShardPeer& peer);
  ps::ShardPeer* peer_in(uint32_t slot) const { return peers_.active(first_worker_ + slot); }
  uint32_t slot_of(ps::WorkerIndex worker) const { return worker - first_worker_; }

  // The side of the shard.
  void drive_shard(TimePoint now);
  void want_shard(TimePoint now, Duration delay);
  void open_shard(TimePoint now);
  void lose_shard(const std::string& why);
  void give_up(const std::string& why);
  void drop_worker(ps::WorkerIndex worker, const std::string& why);
  void on_shard_active();
  void forward(uint32_t bucket);
  void send(uint32_t bucket, const GroupProtocol::Forward& next);
  void post_sums();
  void probe(TimePoint now);
  void on_answer(uint64_t immediate);

  // Set once.
  const ShardSide::Options connect_;
  const ShardTarget target_;
  const ps::ShardSetup setup_;
  const uint32_t first_worker_;
  const uint32_t group_size_;
  const std::function<void(const std::string&)> log_;
  std::vector<ps::ShardEndpoint> endpoints_;

  // Any thread.
  ps::TaskQueue tasks_;
  std::atomic<TimePoint> idle_since_;

  // Owner thread. Members are destroyed bottom up: peers and regions end before their contexts.
  ps::ShardEnvironment environment_;
  transport::WaitSet wait_set_;
  ps::Partition partition_;
  ps::RegisteredParameters parameters_;
  ps::PeerTable peers_;
  ps::BackupRole backup_;
  ps::Handshake handshake_;
  struct Sums {
    SharedMemory memory;  ///< [elements of the shard]: of the requests under way, each at its place in fp32
    std::vector<float> scratch;
  } sums_;
  GroupProtocol protocol_;
  std::array<std::optional<GroupMember>, ps::kMaxSumGroup> members_;  ///< admitted, by slot
  std::unique_ptr<ShardSide> shard_;
  uint64_t connected_ = 0;          ///< slots of the members of the connection to the shard
  uint64_t first_incarnation_ = 0;  ///< of the first of them, for headers
  bool is_shard_active_ = false;
  bool must_forward_all_ = false;  ///< a worker has left: requests of the others may be complete
  struct Reach {
    bool is_wanted = false;                   ///< a request waits for a connection with its worker
    TimePoint open_at = TimePoint::max();     ///< when the connection to the shard begins
    TimePoint give_up_at = TimePoint::max();  ///< without a connection until then, the workers are sent away
    Duration refusal{};                       ///< the last one, since the shard was reached
    TimePoint refuse_until;                   ///< no worker is admitted
    TimePoint check_at;                       ///< without a connection, the next worker that attaches asks for one
    std::string why_not;                      ///< of the last attempt, or why the workers were sent away
  } reach_;
  struct Pending {
    uint32_t bucket = 0;
    size_t payload_bytes = 0;
    worker::ShardPath::Sent sent{};
  };
  ps::PathTraffic shard_traffic_;
  RateLimitedLog rate_limited_log_;
  std::deque<Pending> backlog_;  ///< sums without room on the way to the shard
  struct Probing {
    TimePoint next = TimePoint::max();
    Duration interval{};
  } probing_;

  std::thread thread_;  ///< last: it starts when all else exists
};

}  // namespace gradrail::aggregator
