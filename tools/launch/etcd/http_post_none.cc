#include "tools/launch/etcd/http_post.h"

namespace gradrail::tools {

absl::StatusOr<std::unique_ptr<HttpPost>> HttpPost::create() {
  return absl::FailedPreconditionError(
      "--rendezvous: this program was built without libcurl (libcurl4-openssl-dev), so that it cannot reach etcd: "
      "build it again with -DGRADRAIL_ETCD=ON, or list the cluster with --ps_hosts and --worker_hosts");
}

}  // namespace gradrail::tools
