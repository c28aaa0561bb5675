#include "bench/driver/bind_host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <memory>

#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

/// "127.0.0.1 (lo), 10.0.0.2 (eth0)".
std::string addresses_of_this_host() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "unknown";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::string text;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    // An interface without an address has no ifa_addr (getifaddrs(3)).
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    char address[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr, address, sizeof(address));
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", address, each->ifa_name);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

absl::Status check_bind_host(const std::string& host) {
  if (host.empty()) return absl::OkStatus();
  const absl::StatusOr<std::vector<NetAddress>> found = resolve(host, 0);
  // The kernel has more addresses than the interfaces: all of 127.0.0.0/8 is this host.
  if (found.ok() && bind_error(found->front()) == 0) return absl::OkStatus();
  const std::string_view why = found.ok() ? "not an address of this host" : message_of(found.status());
  return absl::FailedPreconditionError(
      fmt::format("--bind-host {}: {}; this host has {}", host, why, addresses_of_this_host()));
}

}  // namespace gradrail::bench
