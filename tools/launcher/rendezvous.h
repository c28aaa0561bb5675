#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "ps/cluster_spec.h"
#include "ps/launcher.h"

namespace gradrail::tools {

/// What one task says of itself to the others.
struct Attendance {
  ps::Launch launch;
  uint32_t ps_count = 1;
  std::string bind_host;  ///< that others reach us at; "": found out
  Duration patience = std::chrono::seconds(60);
  std::function<void(const std::string&)> say;  ///< for people who wait
};

/// What the others then know of it.
struct Seat {
  ps::TaskId task;
  std::vector<std::string> ps_hosts;  ///< by task index
  std::vector<std::string> worker_hosts;
  bool own_cpus = false;       ///< the launcher has bound the tasks of this host to different cpus
  uint16_t place_on_host = 0;  ///< among the tasks of this host
};

/// All tasks of a job find each other where its launcher told only numbers: the first ps task, or ps-lite's scheduler,
/// waits at an address that everybody knows, gives each task its seat and passes on at which ports the ps listen.
/// Threads  One.
class Rendezvous {
 public:
  /// Until everybody has come. Errors  DEADLINE_EXCEEDED: names who did not. FAILED_PRECONDITION: the address cannot be
  /// listened at; tasks were started with different flags. UNAVAILABLE: whom we had met is gone.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> meet(const Attendance& attendance);
  virtual ~Rendezvous() = default;

  const Seat& seat() const { return seat_; }

  /// A ps listens at this port of its host; the scheduler has none: 0. The first ps (or the scheduler) waits for the
  /// others' and tells the workers.
  virtual absl::Status publish(uint16_t port) = 0;
  /// A worker's: "host:port" of each ps, once all of them listen.
  virtual absl::StatusOr<std::vector<std::string>> ps_addresses() = 0;

 protected:
  Seat seat_;
};

}  // namespace gradrail::tools
