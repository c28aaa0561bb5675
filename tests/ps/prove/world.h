#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ps/control/membership.h"
#include "ps/replication/backup_progress.h"
#include "ps/replication/bucket_state.h"
#include "ps/shard/answer_gate.h"
#include "ps/shard/shard_protocol.h"
#include "tests/ps/prove/bytes.h"
#include "tests/ps/prove/config.h"
#include "tests/ps/prove/event.h"
#include "tests/ps/prove/ledger.h"

namespace gradrail::ps::prove {

/// Time is an argument of Membership. Its limits are not searched here: time stands still.
inline constexpr TimePoint kNow = TimePoint() + std::chrono::hours(1);

/// An answer on its way to a worker.
struct Answer {
  uint64_t step = 0;
  uint64_t version = 0;
  bool dropped = false;
  uint64_t next_step = 0;
};

/// One bucket of the connection of one worker and one shard. The order within a lane is kept.
struct Lane {
  std::optional<Push> push;  ///< on its way; the next one requires the answer to this one
  std::vector<Push> copies;  ///< may arrive at any time, without a payload
  std::vector<Answer> answers;
  std::optional<Push> slot;  ///< the payload at the shard; ends with the connection
};

/// The connection of one worker and one shard, at the shard.
struct Port {
  bool is_open = false;
  uint64_t incarnation = 0;
  std::vector<Lane> lanes;
};

/// One shard: a primary, or its backup.
struct Side {
  bool is_running = true;
  bool is_serving = false;
  ShardProtocol protocol;
  Membership membership;
  ShardLedger ledger;
  std::vector<Port> ports;  ///< per worker
};

/// A bucket on its way to the backup.
struct Transfer {
  BucketState state;
  BucketLedger ledger;
};

/// The connection of a primary and its backup, with the parts of both roles. BackupRole is not pure; its two flags are
/// modelled here.
struct Link {
  std::optional<BackupProgress> progress;  ///< nothing: the primary has no connection
  AnswerGate gate;
  std::optional<Transfer> filled;
  std::vector<std::optional<Transfer>> transfers;  ///< per bucket
  std::vector<bool> acknowledgements;              ///< per bucket
  bool level_message = false;
  bool is_broken = false;  ///< one end may still be open
  bool is_open_at_backup = false;
  bool is_expected = false;              ///< the backup waits for a new connection of its primary
  bool is_level = false;                 ///< at the backup: it may take over
  std::vector<Membership::Known> known;  ///< the members, as the backup has them

  /// The end of the backup: what is on its way there is lost.
  void close();
};

/// One ps task and its backup.
struct Server {
  std::vector<Side> sides;
  Link link;
  std::vector<uint64_t> seen_versions;   ///< per bucket: the highest that a worker has seen
  std::vector<uint64_t> taken_versions;  ///< per bucket: what the backup had at its takeover
};

/// A worker process, as worker/client drives one.
struct Worker {
  enum class Phase : uint8_t { joining, opening, running, leaving, gone, killed };
  struct Bucket {
    bool is_answered = true;
    bool is_absent = false;  ///< in this step
    bool is_late = false;    ///< quorum: its gradient has not been applied
    uint64_t seen_version = 0;
    uint64_t next_step = 0;  ///< ssp: named by the answer to a pull
    uint64_t acknowledged_step = 0;
  };
  struct Connection {
    int side = -1;           ///< -1: closed
    bool has_joined = true;  ///< this incarnation
    bool has_finished = false;
    bool has_left = false;
    std::vector<Bucket> buckets;
  };
  Phase phase = Phase::running;
  uint64_t incarnation = 1;
  uint64_t step = 0;
  uint64_t first_step = 1;
  bool was_dropped = false;  ///< in this step
  std::vector<Connection> servers;

  bool exchanges() const { return phase == Phase::opening || phase == Phase::running; }
};

/// A cluster at one moment: the shipped pure code, and a model of the rest. A value, so that a search can branch.
class World {
 public:
  explicit World(const Config& config);

  /// Every event that may happen next. Empty: everything has come to rest. A reduced set is sufficient for each state
  /// (see reduce()).
  std::vector<Event> events() const;
  void run(const Event& event);

  /// "" or the invariant that the last event has broken.
  const std::string& violation() const { return violation_; }
  /// All workers have finished, or wait for a server that is lost for good. "" or what is missing.
  std::string incomplete() const;
  Bytes bytes() const;

 private:
  // world.cc
  uint8_t server_count() const { return static_cast<uint8_t>(servers_.size()); }
  uint8_t side_count() const { return config_->has_backup ? 2 : 1; }
  void add_fault_events(std::vector<Event>& events) const;
  void add_worker_events(WorkerIndex worker, std::vector<Event>& events) const;
  void add_connection_events(WorkerIndex worker, uint8_t server, std::vector<Event>& events) const;
  void add_lane_events(WorkerIndex worker, uint8_t server, std::vector<Event>& events) const;
  void add_window_events(uint8_t server, std::vector<Event>& events) const;
  void add_link_events(uint8_t server, std::vector<Event>& events) const;
  bool reduce(std::vector<Event>& events) const;
  void fail(std::string_view what);

  // world_worker.cc
  int serving_side(uint8_t server) const;
  bool is_present(WorkerIndex worker, uint64_t incarnation, uint8_t server) const;
  bool may_join(WorkerIndex worker, uint8_t server) const;
  void begin_step(WorkerIndex worker, Worker::Phase phase, uint64_t step, bool repeats = false);
  bool has_place(const Worker& worker, uint8_t server, uint8_t bucket) const;
  void send(WorkerIndex worker, uint8_t server, uint8_t bucket);
  void connect(WorkerIndex worker, uint8_t server, int side);
  void on_answer(WorkerIndex worker, const Event& event);
  void complete_step(WorkerIndex worker);
  void begin_running(WorkerIndex worker);
  void join(WorkerIndex worker, uint8_t server);
  void start(WorkerIndex worker);
  void stop(WorkerIndex worker, Worker::Phase phase);
  void run_worker_event(const Event& event);

  // world_shard.cc
  void deliver(const Event& event);
  void compare_ways(const ShardProtocol& protocol, const Arrival& arrival, const Actions& actions,
                    ShardProtocol& short_way);
  void forge(const Event& event);
  void close_port(uint8_t server, uint8_t side, WorkerIndex worker);
  void admit(WorkerIndex worker, uint8_t server, uint8_t side);
  void depart(const Event& event);
  void run_actions(uint8_t server, uint8_t side, const Actions& actions);
  void check_withheld(uint8_t server, uint8_t side);
  void end_window(const Event& event);
  void answer(uint8_t server, uint8_t side, const Action& action);

  // world_replication.cc
  void run_link_event(const Event& event);
  void advance(uint8_t server, bool has_room);
  void open_link(uint8_t server);
  void release(uint8_t server, Actions& released);
  void take_over(const Event& event);
  void stop_side(uint8_t server, uint8_t side);

  // world_bytes.cc
  void write_worker(WorkerIndex worker, Bytes& bytes) const;
  void write_shared(Bytes& bytes) const;

  const Config* config_;
  Faults faults_;  ///< that may still happen
  std::vector<Worker> workers_;
  std::vector<Server> servers_;
  std::string violation_;
};

}  // namespace gradrail::ps::prove
