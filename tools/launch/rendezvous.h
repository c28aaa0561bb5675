#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "ps/protocol/cluster_spec.h"
#include "ps/protocol/launcher.h"

namespace gradrail::tools {

/// The description that one task sends to the others.
struct RendezvousRequest {
  ps::Launch launch;
  uint32_t ps_count = 1;
  std::string bind_host;  ///< that others reach us at; "": found out
  Duration timeout = std::chrono::seconds(60);
  std::function<void(const std::string&)> say;  ///< for people that wait
};

/// The description of it that the others have then.
struct RankAssignment {
  ps::TaskId task;
  std::vector<std::string> ps_hosts;  ///< by task index
  std::vector<std::string> worker_hosts;
  bool own_cpus = false;       ///< the launcher has bound the tasks of this host to different cpus
  uint16_t place_on_host = 0;  ///< among the tasks of this host
};

/// All tasks of a job find each other where its launcher gave only numbers. The first ps task, or ps-lite's scheduler,
/// waits at an address that all tasks have. It gives each task its index and passes on at which ports the ps listen.
/// Threads  One.
class Rendezvous {
 public:
  /// Until all have joined. Errors  DEADLINE_EXCEEDED: the missing tasks. FAILED_PRECONDITION: the address cannot be
  /// listened at; tasks were started with different flags. UNAVAILABLE: a task that had joined is gone.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> join(const RendezvousRequest& request);
  virtual ~Rendezvous() = default;

  const RankAssignment& assignment() const { return assignment_; }

  /// A ps listens at this port of its host; the scheduler has none: 0. The first ps (or the scheduler) waits for the
  /// others' and notifies the workers.
  virtual absl::Status publish(uint16_t port) = 0;
  /// A worker's: "host:port" of each ps, once all of them listen.
  virtual absl::StatusOr<std::vector<std::string>> ps_addresses() = 0;

 protected:
  RankAssignment assignment_;
};

}  // namespace gradrail::tools
