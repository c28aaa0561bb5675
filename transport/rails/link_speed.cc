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

std::string interface_with(const std::string& host) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first, &freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    NetAddress address;
    address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, each->ifa_addr, address.bytes);
    if (address.host() == host) return each->ifa_name;
  }
  return "";
}

}  // namespace

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
  link.interface = interface_with(link.local_host);
  int64_t speed = 0;
  if (!link.interface.empty()) std::ifstream(fmt::format("{}/class/net/{}/speed", sys, link.interface)) >> speed;
  link.mbit_per_s = static_cast<uint32_t>(std::clamp<int64_t>(speed, 0, 10'000'000));
  return link;
}

uint32_t auto_streams(uint32_t mbit_per_s) {
  if (mbit_per_s < kFlowMbitPerSecond) return 1;
  return std::min(kMaxAutoStreams, (mbit_per_s + kFlowMbitPerSecond - 1) / kFlowMbitPerSecond);
}

}  // namespace gradrail::transport::rails
