#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace gradrail::tools {

/// One end of HTTP: bodies of JSON to a few servers, connections kept open. TLS where the URL says https, with the
/// files that etcdctl's variables name: ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY. Threads  One at a time.
class HttpPost {
 public:
  /// Errors  FAILED_PRECONDITION: built without libcurl.
  static absl::StatusOr<std::unique_ptr<HttpPost>> create();
  virtual ~HttpPost() = default;

  struct Reply {
    long code = 0;
    std::string body;
    std::string local_host;  ///< our end of the connection
  };
  /// Errors  UNAVAILABLE: no server, or no full answer in time. FAILED_PRECONDITION: something there that does not
  ///         speak HTTP, says more than 4 MiB, or has no certificate that we trust.
  virtual absl::StatusOr<Reply> post(const std::string& url, const std::string& body, Duration timeout) = 0;
};

}  // namespace gradrail::tools
