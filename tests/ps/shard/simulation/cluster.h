#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fmt/format.h"
#include "tests/ps/shard/simulation/event_queue.h"
#include "tests/ps/shard/simulation/ledger.h"
#include "tests/ps/shard/simulation/messages.h"
#include "tests/ps/shard/simulation/model_shard.h"
#include "tests/ps/shard/simulation/model_worker.h"
#include "tests/ps/shard/simulation/plan.h"

namespace gradrail::ps::simulation {

/// How often things happened, so that a run over many seeds can show that it saw them.
struct Coverage {
  uint64_t events = 0;
  uint64_t lost_messages = 0;
  uint64_t copies = 0;
  uint64_t reconnects = 0;
  uint64_t restarts = 0;
  uint64_t departures = 0;
  uint64_t rejoins = 0;
  uint64_t refusals = 0;
  uint64_t ghosts = 0;
  uint64_t stale_arrivals = 0;
  uint64_t answered_unapplied = 0;
  uint64_t steps_by_window = 0;
  void operator+=(const Coverage& other);
};

/// Workers and shards in virtual time. Links delay, reorder and copy messages, and lose the messages in flight when
/// they break. The order within one bucket of one connection is kept.
class Cluster {
 public:
  Cluster(const Plan& plan, bool traced);

  /// Until nothing is left to happen. "" or what went wrong first.
  std::string run();
  const Coverage& coverage() const { return coverage_; }

 private:
  struct Link {  ///< of one worker and one shard
    uint64_t connection = 0;
    bool up = false;
    std::vector<uint64_t> last_arrival[2];  ///< per direction and bucket: keeps the order of one bucket
  };

  // cluster.cc: control plane
  void join(WorkerIndex worker);
  void on_joined(WorkerIndex worker, uint64_t incarnation);
  void leave(WorkerIndex worker, uint64_t timeout);
  std::string verdict();

  // cluster_links.cc: data plane
  Link& link(WorkerIndex worker, uint32_t shard) { return links_[worker * shards_.size() + shard]; }
  uint64_t connect(WorkerIndex worker, uint32_t shard);
  void lose(WorkerIndex worker, uint32_t shard);
  void reconnect(WorkerIndex worker, uint32_t shard, uint64_t incarnation, uint64_t lost_connection);
  uint64_t arrival_time(Link& link, int direction, uint32_t bucket);
  void send(uint32_t shard, const Arrival& arrival, uint64_t payload);
  void send_copies(uint32_t shard, Notification notice);
  void deliver(uint32_t shard, const Notification& notice);
  void answer(const Answer& answer);
  void deliver(const Answer& answer);

  // cluster_faults.cc
  void schedule_faults();
  void schedule(uint32_t count, const std::function<void(WorkerIndex)>& fault);
  bool may_go(WorkerIndex worker) const;
  void restart(WorkerIndex worker);
  void kill(WorkerIndex worker);
  void falsely_remove(WorkerIndex worker);
  void rejoin(WorkerIndex worker, uint32_t shard, uint64_t incarnation);
  void forge(WorkerIndex worker);
  void haunt(WorkerIndex worker);

  uint64_t delay() { return 1 + random_.below(plan_.delay_max); }
  uint32_t shard_count() const { return static_cast<uint32_t>(shards_.size()); }
  uint64_t new_incarnation() { return random_.next() | 1; }

  template <typename... Arguments>
  void trace(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    if (trace_)
      fmt::print(stderr, "[{:6}] {}\n", queue_.now(), fmt::format(format, std::forward<Arguments>(arguments)...));
  }

  const Plan plan_;
  const bool trace_;
  Random random_;
  EventQueue queue_;
  Ledger ledger_;
  Coverage coverage_;
  uint64_t connections_made_ = 0;
  std::vector<ModelShard> shards_;
  std::vector<ModelWorker> workers_;
  std::vector<Link> links_;
  std::vector<uint32_t> joins_missing_;                   ///< per worker: shards
  std::vector<std::vector<uint64_t>> past_incarnations_;  ///< per worker
};

}  // namespace gradrail::ps::simulation
