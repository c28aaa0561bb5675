#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::launch {

/// The calls of etcd's v3 interface that a rendezvous needs (etcd 3.4 and newer).
///
/// Errors   UNAVAILABLE: no endpoint answers, or etcd is not ready: a later attempt may succeed. FAILED_PRECONDITION:
///          the endpoint is not etcd, or it refuses the call. Both name the endpoint.
/// Threads  One at a time.
class Etcd {
 public:
  /// `endpoints`: "http://host:2379", or https for TLS 1.3 with the files that etcdctl's variables name:
  /// ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY. No connection is made yet.
  /// Errors  FAILED_PRECONDITION: one of the files.
  static absl::StatusOr<std::unique_ptr<Etcd>> open(const std::vector<std::string>& endpoints);
  ~Etcd();

  struct Entry {
    std::string key;
    std::string value;
    int64_t lease = 0;  ///< 0: none
  };
  struct Listing {
    int64_t revision = 0;  ///< of all of etcd, at the time of the reading
    std::vector<Entry> entries;
  };
  /// This key, or all keys below a prefix that ends with '/'.
  absl::StatusOr<Listing> list(const std::string& key);

  absl::StatusOr<int64_t> grant(int64_t seconds);
  /// False: the lease does not exist (any more).
  absl::StatusOr<bool> keep_alive(int64_t lease);
  absl::Status revoke(int64_t lease);

  enum class Put {
    done,
    changed,   ///< the key was written since then, so nothing was done. A removal does not count
    no_lease,  ///< the lease has ended, so nothing was done
  };
  absl::StatusOr<Put> put_if_unchanged(int64_t revision, const Entry& entry);

  /// This host's end of the connection that brought the last answer. Other hosts probably reach this host there.
  std::string local_host() const;

 private:
  class Endpoints;
  explicit Etcd(std::unique_ptr<Endpoints> endpoints);

  const std::unique_ptr<Endpoints> endpoints_;
};

}  // namespace gradrail::launch
