#include "launch/etcd/local_host.h"

#include "base/file_descriptor.h"
#include "base/net_address.h"
#include "launch/rendezvous/rank_stream.h"

namespace gradrail::launch {

std::string local_host_towards(const std::string& peer) {
  const std::string host = host_of_peer(peer);
  if (host.empty()) return "";
  constexpr uint16_t kAnyPort = 9;  // a connect of UDP sends nothing: it selects the route
  const absl::StatusOr<std::vector<NetAddress>> target = resolve(host, kAnyPort);
  if (!target.ok()) return "";
  const FileDescriptor fd(socket(target->front().family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  NetAddress local{.bytes = sizeof(local.storage)};
  const bool known = connect(fd.get(), target->front().get(), target->front().bytes) == 0 &&
                     getsockname(fd.get(), local.get(), &local.bytes) == 0;
  return known ? local.host() : "";
}

}  // namespace gradrail::launch
