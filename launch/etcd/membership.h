#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "launch/etcd/lease_keeper.h"
#include "launch/etcd/rendezvous_url.h"
#include "launch/etcd/roster.h"
#include "ps/protocol/cluster_spec.h"

namespace gradrail::launch {

/// The facts that a new task has of itself.
struct MembershipRequest {
  RendezvousUrl where;
  std::string job;                ///< "ps" or "worker"
  std::optional<uint32_t> index;  ///< nothing: the first that is free
  std::optional<Sizes> sizes;     ///< nothing: another task says them
  std::string host;               ///< that others reach us at; "": where etcd sees us
  Duration timeout = std::chrono::minutes(30);
  std::function<void(const std::string&)> say;  ///< for people that wait
};

/// A place among the tasks of a job, held by a lease. It is free again when we end, or a few seconds after we were
/// killed.
/// Threads  ps_address(): one thread at a time. publish(): any thread. The rest: owner thread.
class Membership {
 public:
  /// Until there is a place. Errors  DEADLINE_EXCEEDED: etcd did not answer, or no task has said how large the run is.
  /// ALREADY_EXISTS: a running task has that index, or there is no free one. INVALID_ARGUMENT: as agreed_sizes(), or
  /// an index that the run does not have. FAILED_PRECONDITION: the endpoint is not etcd, or it refuses.
  static absl::StatusOr<std::unique_ptr<Membership>> join(const MembershipRequest& request);

  const ps::TaskId& task() const { return task_; }
  const Sizes& sizes() const { return sizes_; }
  const std::string& host() const { return host_; }

  /// A ps: it listens at this port of its host. A reader finds it as soon as etcd is there.
  void publish(uint16_t port);

  /// Where a ps is now; where it was last while etcd does not answer. Errors  NOT_FOUND: it is not registered.
  /// UNAVAILABLE: etcd does not answer, and never has.
  absl::StatusOr<std::string> ps_address(uint32_t index);

 private:
  Membership(const RendezvousUrl& where, std::unique_ptr<Etcd> etcd) : where_(where), etcd_(std::move(etcd)) {}

  struct Known {
    absl::StatusOr<std::string> answer = absl::UnavailableError("");
    std::string last;
    TimePoint asked;
  };
  absl::StatusOr<std::string> look_up(uint32_t index);

  const RendezvousUrl where_;
  const std::unique_ptr<Etcd> etcd_;
  ps::TaskId task_;
  Sizes sizes_;
  std::string host_;
  std::vector<Known> known_;
  std::unique_ptr<LeaseKeeper> keeper_;
};

/// Where the ps tasks of a job are, for processes outside the job, by task index. Errors  NOT_FOUND: a ps is not
/// registered; names it. As Etcd.
absl::StatusOr<std::vector<std::string>> find_ps(const RendezvousUrl& where);

}  // namespace gradrail::launch
