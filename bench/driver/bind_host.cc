#include "bench/driver/bind_host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <memory>

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
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    char address[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr, address, sizeof(address));
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", address, each->ifa_name);
  }
  return text.empty() ? "none" : text;
}

/// Asks the kernel, which has more than the interfaces: all of 127.0.0.0/8 is this host.
bool can_listen_at(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool bound = bind(fd, address.ai_addr, address.ai_addrlen) == 0;
  close(fd);
  return bound;
}

}  // namespace

absl::Status check_bind_host(const std::string& host) {
  if (host.empty()) return absl::OkStatus();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  if (error == 0 && can_listen_at(*found)) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("--bind-host {}: {}; this host has {}", host,
                                                   error != 0 ? gai_strerror(error) : "not an address of this host",
                                                   addresses_of_this_host()));
}

}  // namespace gradrail::bench
