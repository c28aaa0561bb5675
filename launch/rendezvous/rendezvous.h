#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradrail/clock.h"
#include "launch/launcher/launcher.h"
#include "launch/rendezvous/rendezvous.pb.h"

namespace gradrail::launch {

/// The description that one task sends to the others.
struct RendezvousRequest {
  Launch launch;
  std::string secret;  ///< secret of the job; "": none
  uint32_t ps_count = 1;
  bool backup_ps = false;  ///< the second half of the ps tasks are backups of the first half
  std::string bind_host;   ///< address at which others reach this task; "": its address in the connection
  Duration timeout = std::chrono::seconds(60);
  std::function<void(const std::string&)> say;  ///< progress for users
};

/// All tasks of a job find each other where its launcher gave only numbers. The first ps task waits at an address that
/// all tasks have. It sends each task the hosts of all, and passes on at which ports the ps listen.
/// Errors   Those of RankServer, join_first_rank() and RankStream, which name the other task.
/// Threads  One, beside that of the gate.
class Rendezvous {
 public:
  /// Waits until all have joined.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> join(const RendezvousRequest& request);
  virtual ~Rendezvous() = default;

  const proto::RankAssignment& assignment() const { return assignment_; }

  /// A ps listens at this port of its host. The first ps waits for those of the others and notifies the workers.
  virtual absl::Status publish(uint16_t port) = 0;
  /// "host:port" of each ps. A worker waits until all of them listen. A primary waits for the backups alone, before
  /// publish(): the ports of the primaries are 0 then. The first ps calls it if there are backups.
  virtual absl::StatusOr<std::vector<std::string>> ps_addresses() = 0;

 protected:
  proto::RankAssignment assignment_;
};

}  // namespace gradrail::launch
