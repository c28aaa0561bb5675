#include "tools/launch/etcd/local_host.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_replace.h"
#include "ps/protocol/cluster_spec.h"

namespace gradrail::tools {

std::string local_host_towards(const std::string& peer) {
  // gRPC escapes the brackets and the zone of an IPv6 address.
  const std::string address = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  // "ipv4:" or "ipv6:" comes before the first colon.
  const absl::StatusOr<ps::HostPort> there = ps::parse_host_port(address.substr(address.find(':') + 1));
  if (!there.ok()) return "";
  // Numeric only: the query must not ask a name server.
  const addrinfo hints{.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(there->host.c_str(), std::to_string(there->port).c_str(), &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> target(found, freeaddrinfo);
  // A connect of UDP sends nothing: it selects the route.
  const int fd = socket(target->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  auto* const name = reinterpret_cast<sockaddr*>(&local);
  char host[NI_MAXHOST] = "";
  const bool known = connect(fd, target->ai_addr, target->ai_addrlen) == 0 && getsockname(fd, name, &length) == 0 &&
                     getnameinfo(name, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0;
  if (fd >= 0) close(fd);
  constexpr std::string_view kMapped = "::ffff:";  // an IPv4 peer of a socket for both families
  if (!known) return "";
  return std::string_view(host).starts_with(kMapped) ? host + kMapped.size() : host;
}

}  // namespace gradrail::tools
