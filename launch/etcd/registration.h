#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "gradrail/clock.h"
#include "launch/etcd/etcd.h"
#include "launch/launcher/rendezvous_url.h"

namespace gradrail::launch {

/// The key of a killed ps is free after this time. A longer outage of etcd has no effect on the run.
constexpr int64_t kLeaseSeconds = 5;

/// "/gradrail/JOB/ps/": the keys of all ps tasks of a job are below it.
std::string ps_prefix(const std::string& job);

struct RegistrationRequest {
  RendezvousUrl where;
  uint32_t ps_index = 0;
  std::string host;  ///< at which others reach this task; "": its address in the connection to etcd
  Duration timeout = std::chrono::minutes(30);
  std::function<void(const std::string&)> say;  ///< progress for users
};

/// The address of a ps task in etcd: the key /gradrail/JOB/ps/INDEX with the value "HOST" until the ps listens, then
/// "HOST:PORT". The key has a lease. A thread renews it, also over restarts of etcd.
/// Threads  publish(): any thread. The rest: owner thread.
class Registration {
 public:
  /// Waits until etcd answers and the key is free.
  /// Errors  DEADLINE_EXCEEDED: etcd did not answer. ALREADY_EXISTS: another task holds the key for longer than a lease.
  ///         FAILED_PRECONDITION: the endpoint is not etcd, or it refuses. RESOURCE_EXHAUSTED: the kernel refused a thread.
  static absl::StatusOr<std::unique_ptr<Registration>> take(const RegistrationRequest& request);
  /// Removes the key.
  ~Registration();

  const std::string& host() const { return host_; }
  /// The ps listens at this port of its host. Readers find it at once, or when etcd is reachable again.
  void publish(uint16_t port);

 private:
  Registration(const RegistrationRequest& request, std::unique_ptr<Etcd> etcd);
  absl::Status wait_for_key(const RegistrationRequest& request);
  absl::Status keep_lease();
  absl::Status renew(uint16_t port);
  void run();
  void report(const absl::Status& status);

  // Owner: the thread of take(), then thread_.
  const std::unique_ptr<Etcd> etcd_;
  const std::string key_;
  std::string host_;
  int64_t lease_ = 0;  ///< 0: none
  std::string trouble_;

  Mutex mutex_;
  ConditionVariable changed_;
  uint16_t port_ ABSL_GUARDED_BY(mutex_) = 0;  ///< 0: the ps does not listen yet
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gradrail::launch
