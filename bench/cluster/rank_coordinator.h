#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/cluster/member.h"
#include "bench/cluster/rank_matrix.h"
#include "bench/cluster/ranks.h"
#include "launch/rendezvous/rank_server.h"
#include "topology/cpu_set.h"

namespace gradrail::bench {

/// Rank 0's view of a run over several processes: it is the first server, sends the others their tasks and prints.
/// Threads  One, beside that of the gate: child processes must not be plain forks.
class RankCoordinator {
 public:
  /// Waits for all others. Errors  Those of launch::RankServer.
  static absl::StatusOr<std::unique_ptr<RankCoordinator>> open(const Place& place, const std::string& bind_host);

  /// Places of the ranks, in the order of members().
  std::vector<RankPlace> places() const { return places_; }
  std::vector<Member*> members() const;
  std::vector<Member*> servers() const;
  std::vector<Member*> workers() const;
  /// Address on which this process' server listens.
  const std::string& bind_host() const { return bind_host_; }
  /// Whether all have one clock.
  bool on_one_host() const { return hosts_.size() == 1; }
  /// The others end with this error, when this object ends.
  void fail(const absl::Status& why) { end_ = why; }
  /// Whether on some host more tasks would spin than it has cores.
  bool oversubscribed(uint32_t shards) const;

 private:
  explicit RankCoordinator(const Place& place) : place_(place) {}
  struct Host {
    topology::CpuSet cpus;  ///< cpus that any of its ranks may use
    uint32_t servers = 0;
    uint32_t workers = 0;
  };
  const Place place_;
  absl::Status end_;  ///< declared before the members: they send it
  std::string bind_host_;
  std::map<std::string, Host> hosts_;
  std::vector<RankPlace> places_;
  std::unique_ptr<launch::RankServer> ranks_;
  std::vector<std::unique_ptr<Member>> members_;  ///< indexed by rank
};

/// Runs any other rank: executes the requests of rank 0 until the run is over. Errors Those of
/// launch::join_first_rank() and launch::RankStream.
absl::Status serve_rank(const Place& place, const std::string& bind_host);

}  // namespace gradrail::bench
