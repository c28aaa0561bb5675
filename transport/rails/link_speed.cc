#include "transport/rails/link_speed.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/file_descriptor.h"
#include "base/net_address.h"
#include "fmt/format.h"

namespace gradrail::transport::rails {
namespace {

constexpr uint32_t kFlowMbitPerSecond = 40'000;
constexpr uint32_t kMaxAutoStreams = 8;

}  // namespace

std::vector<LinkAddress> link_addresses() {
  std::vector<LinkAddress> addresses;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first, &freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    NetAddress address;
    address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, each->ifa_addr, address.bytes);
    addresses.push_back({each->ifa_name, address});
  }
  return addresses;
}

uint32_t speed_of(const std::string& interface, const std::string& sys) {
  int64_t speed = 0;
  std::ifstream(fmt::format("{}/class/net/{}/speed", sys, interface)) >> speed;  // -1, or no number: unknown or down
  return static_cast<uint32_t>(std::clamp<int64_t>(speed, 0, 10'000'000));
}

std::string host_of(const std::string& address) {
  const std::string plain = address.substr(0, address.find('#'));
  std::string host = plain.substr(0, plain.rfind(':'));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return host;
}

Link link_towards(const std::string& address, const std::string& sys) {
  const std::string host = host_of(address);
  // Addresses of endpoints are numeric: a name would make the resolver block.
  if (!is_ip_address(host, AF_INET) && !is_ip_address(host, AF_INET6)) return {};
  constexpr uint16_t kAnyPort = 9;
  const auto found = resolve(host, kAnyPort);
  if (!found.ok()) return {};
  const FileDescriptor probe(socket(found->front().family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // A datagram socket only looks up the route.
  if (!probe || connect(probe.get(), found->front().get(), found->front().bytes) != 0) return {};
  Link link{.local_host = local_address(probe.get()).host()};
  for (const LinkAddress& each : link_addresses()) {
    if (each.address.host() != link.local_host) continue;
    link.interface = each.interface;
    link.mbit_per_s = speed_of(each.interface, sys);
    break;
  }
  return link;
}

uint32_t auto_streams(uint32_t mbit_per_s) {
  if (mbit_per_s < kFlowMbitPerSecond) return 1;
  return std::min(kMaxAutoStreams, (mbit_per_s + kFlowMbitPerSecond - 1) / kFlowMbitPerSecond);
}

}  // namespace gradrail::transport::rails
