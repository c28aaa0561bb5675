#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/launch/etcd/http_post.h"

namespace gradrail::tools {

/// The few words of etcd's v3 interface that we need, over its HTTP gateway (etcd 3.4 and newer).
///
/// Keys lie below a prefix that ends with '/'. `Keys{prefix, true}` are all below it, `Keys{key}` that one alone.
/// Errors   UNAVAILABLE: no endpoint answers, or etcd cannot just now: try again. FAILED_PRECONDITION: what answers is
/// no
///          etcd, or refuses us: trying again helps as little. Both name the endpoint.
/// Threads  One at a time.
class Etcd {
 public:
  Etcd(std::vector<std::string> endpoints, std::unique_ptr<HttpPost> http)
      : endpoints_(std::move(endpoints)), http_(std::move(http)) {}

  struct Keys {
    std::string key;
    bool below = false;
  };
  struct Entry {
    std::string key;
    std::string value;
    std::string lease;  ///< "0": none
  };
  struct Listing {
    int64_t revision = 0;  ///< of all of etcd, when it looked
    std::vector<Entry> entries;
  };
  absl::StatusOr<Listing> list(const Keys& keys);

  /// Ids of leases are numbers to etcd and mere names to us.
  absl::StatusOr<std::string> grant(int64_t seconds);
  /// False: there is no such lease (any more).
  absl::StatusOr<bool> keep_alive(const std::string& lease);
  absl::Status revoke(const std::string& lease);

  enum class Put {
    done,
    changed,   ///< one of those that were watched, since then; nothing was done. Keys that went do not count
    no_lease,  ///< it has ended; nothing was done
  };
  absl::StatusOr<Put> put_if_unchanged(const Keys& watched, int64_t revision, const Entry& entry);

  /// Our end of the connection that brought the last answer: where others reach this host, as likely as not.
  const std::string& local_host() const { return local_host_; }

 private:
  struct Answer;
  absl::StatusOr<Answer> call(std::string_view method, const std::string& body);
  absl::StatusOr<Answer> ask(const std::string& endpoint, std::string_view method, const std::string& body);

  const std::vector<std::string> endpoints_;
  const std::unique_ptr<HttpPost> http_;
  size_t last_good_ = 0;  ///< the endpoint to begin with
  std::string local_host_;
};

}  // namespace gradrail::tools
