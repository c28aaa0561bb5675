#include "launch/etcd/local_host.h"

#include <string_view>

#include "absl/strings/str_replace.h"
#include "base/file_descriptor.h"
#include "base/net_address.h"
#include "gradrail/cluster.h"

namespace gradrail::launch {
namespace {

/// "10.0.0.1" for "ipv4:10.0.0.1:2222"; "" for an address of another family.
std::string host_of_peer(const std::string& peer) {
  // gRPC escapes the brackets and the zone of an IPv6 address.
  const std::string address = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  const size_t scheme = address.find(':');
  if (scheme == std::string::npos || !address.starts_with("ipv")) return "";
  const absl::StatusOr<HostPort> parsed = parse_host_port(std::string_view(address).substr(scheme + 1));
  if (!parsed.ok()) return "";
  constexpr std::string_view kMapped = "::ffff:";  // an IPv4 peer of a socket for both families
  return parsed->host.starts_with(kMapped) ? parsed->host.substr(kMapped.size()) : parsed->host;
}

}  // namespace

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
