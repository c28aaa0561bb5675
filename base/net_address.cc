#include "base/net_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>

#include "base/file_descriptor.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail {
namespace {

const sockaddr_in& as_v4(const NetAddress& address) { return reinterpret_cast<const sockaddr_in&>(address.storage); }
const sockaddr_in6& as_v6(const NetAddress& address) { return reinterpret_cast<const sockaddr_in6&>(address.storage); }

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

int milliseconds_until(TimePoint deadline) {
  // Rounded up: a rest below 1 ms must not become 0, which would turn a wait into a busy loop. The upper limit keeps
  // the value in an int.
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

/// The buffer of a new connection takes it. A lost connection has another cause.
void send_text(int fd, std::string_view text) {
  [[maybe_unused]] const ssize_t sent = send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

std::string NetAddress::host() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET) inet_ntop(AF_INET, &as_v4(*this).sin_addr, text, sizeof(text));
  if (family() != AF_INET6) return text;
  inet_ntop(AF_INET6, &as_v6(*this).sin6_addr, text, sizeof(text));
  const uint32_t scope = as_v6(*this).sin6_scope_id;
  if (scope == 0) return text;
  char name[IF_NAMESIZE] = "";
  return if_indextoname(scope, name) != nullptr ? fmt::format("{}%{}", text, name) : fmt::format("{}%{}", text, scope);
}

std::string NetAddress::text() const {
  return family() == AF_INET6 ? fmt::format("[{}]:{}", host(), port()) : fmt::format("{}:{}", host(), port());
}

uint16_t NetAddress::port() const {
  return ntohs(family() == AF_INET6 ? as_v6(*this).sin6_port : as_v4(*this).sin_port);
}

void NetAddress::set_port(uint16_t port) {
  in_port_t& field = family() == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(storage).sin_port;
  field = htons(port);
}

bool NetAddress::is_loopback() const {
  // All of 127.0.0.0/8 is loopback, not 127.0.0.1 alone.
  constexpr uint32_t kLoopbackNet = 127;
  if (family() == AF_INET) return ntohl(as_v4(*this).sin_addr.s_addr) >> 24 == kLoopbackNet;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&as_v6(*this).sin6_addr);
}

bool NetAddress::is_any() const { return is_any_host(host()); }

bool is_loopback_host(std::string_view host) { return host.starts_with("127.") || host == "::1"; }

bool is_any_host(std::string_view host) { return host == "0.0.0.0" || host == "::"; }

std::string without_scopes(std::string_view text) {
  std::string plain;
  bool is_inside = false, skips = false;
  for (const char each : text) {
    is_inside = each == '[' || (is_inside && each != ']');
    skips = is_inside && (skips || each == '%');
    if (!skips) plain += each;
  }
  return plain;
}

std::string with_scope_of(std::string_view via, std::string_view text) {
  const size_t begin = via.find('%');
  const std::string_view scope = begin == std::string_view::npos ? "" : via.substr(begin, via.find(']') - begin);
  std::string whole;
  while (!text.empty()) {
    const size_t end = std::min(text.find(']'), text.size());
    const size_t open = text.substr(0, end).rfind('[');
    const std::string host(open == std::string_view::npos ? "" : text.substr(open + 1, end - open - 1));
    in6_addr address;
    const bool is_local = inet_pton(AF_INET6, host.c_str(), &address) == 1 && IN6_IS_ADDR_LINKLOCAL(&address);
    whole += fmt::format("{}{}", text.substr(0, end), is_local ? scope : "");
    text.remove_prefix(end);
    if (text.empty()) break;
    whole += ']';
    text.remove_prefix(1);
  }
  return whole;
}

bool is_ip_address(const std::string& text, int family) {
  if (const size_t scope = text.find('%'); family == AF_INET6 && scope != std::string::npos)
    return is_ip_address(text.substr(0, scope), family);
  in6_addr address;  // the larger of the two types: inet_pton() writes either
  return inet_pton(family, text.c_str(), &address) == 1;
}

absl::StatusOr<std::vector<NetAddress>> resolve(const std::string& host, uint16_t port) {
  addrinfo wanted{};
  // getaddrinfo() without a socket type lists each address once per type.
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV | (host.empty() ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (error != 0) {
    // EAI_SYSTEM only refers to errno, which has the cause.
    const char* words = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
    return absl::UnavailableError(fmt::format("cannot find host '{}': {}", host, words));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::vector<NetAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    NetAddress& address = addresses.emplace_back();
    address.bytes = each->ai_addrlen;
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
  }
  return addresses;
}

int bind_error(const NetAddress& address) {
  const FileDescriptor fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd && bind(fd.get(), address.get(), address.bytes) == 0 ? 0 : errno;
}

absl::Status check_own_address(const std::string& host) {
  const absl::StatusOr<std::vector<NetAddress>> found = resolve(host, 0);
  // The kernel has more addresses than the interfaces: all of 127.0.0.0/8 is this host.
  const auto is_own = [](const NetAddress& address) { return bind_error(address) == 0; };
  if (found.ok() && std::any_of(found->begin(), found->end(), is_own)) return absl::OkStatus();
  const std::string_view why = found.ok() ? "not an address of this host" : message_of(found.status());
  return absl::FailedPreconditionError(fmt::format("{}: {}; this host has {}", host, why, addresses_of_this_host()));
}

NetAddress local_address(int fd) {
  NetAddress address;
  address.bytes = sizeof(address.storage);
  getsockname(fd, address.get(), &address.bytes);
  return address;
}

NetAddress peer_address(int fd) {
  NetAddress address;
  address.bytes = sizeof(address.storage);
  getpeername(fd, address.get(), &address.bytes);
  return address;
}

int listen_at(const NetAddress& address, bool only_v6, FileDescriptor& listener) {
  constexpr int kBacklog = 1024;  // Linux reduces it to net.core.somaxconn
  listener.reset(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int fd = listener.get();
  const int on = 1;
  const int v6 = only_v6 ? 1 : 0;
  const bool listens =
      fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
      (address.family() != AF_INET6 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6, sizeof(v6)) == 0) &&
      bind(fd, address.get(), address.bytes) == 0 && listen(fd, kBacklog) == 0;
  return listens ? 0 : errno;
}

int wait_ready(int fd, short events, TimePoint deadline) {
  pollfd waiting = {.fd = fd, .events = events, .revents = 0};
  while (true) {
    const int ready = poll(&waiting, 1, milliseconds_until(deadline));
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return errno;
    if (Clock::now() >= deadline) return ETIMEDOUT;
  }
}

int connect_until(int fd, const NetAddress& address, TimePoint deadline) {
  if (connect(fd, address.get(), address.bytes) != 0) {
    if (errno != EINPROGRESS) return errno;
    int error = wait_ready(fd, POLLOUT, deadline);
    if (error != 0) return error == ETIMEDOUT ? EINPROGRESS : error;
    // Writable states that the attempt has ended, SO_ERROR how (connect(2)).
    socklen_t bytes = sizeof(error);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) return error;
  }
  // The kernel may choose the port of the absent peer as the local port (simultaneous open).
  return local_address(fd).text() == peer_address(fd).text() ? ECONNREFUSED : 0;
}

int wait_acknowledged(int fd, TimePoint deadline) {
  constexpr auto kLook = std::chrono::milliseconds(20);
  while (true) {
    int waiting = 0;
    if (ioctl(fd, SIOCOUTQ, &waiting) != 0) return errno;
    if (waiting == 0) return 0;
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error != 0) return error;
    if (Clock::now() >= deadline) return ETIMEDOUT;
    std::this_thread::sleep_for(kLook);
  }
}

void send_small_part(int fd) { send_text(fd, "GET /gradrail/challenge/"); }

void send_large_part(int fd) {
  constexpr size_t kBytes = 1900;  // the gate reads 2 KiB of one request
  send_text(fd, std::string(kBytes, 'A'));
}

bool lacks_port(int error, const NetAddress& address, bool listens) {
  if (listens) return error == EADDRINUSE && address.port() == 0;
  // The cause for IPv6 may also be a host without an address of that kind.
  return error == EADDRNOTAVAIL && address.family() == AF_INET;
}

std::string socket_error_text(int error, const NetAddress& address, bool listens) {
  const bool lacks_scope = error == EINVAL && address.family() == AF_INET6 &&
                           IN6_IS_ADDR_LINKLOCAL(&as_v6(address).sin6_addr) && as_v6(address).sin6_scope_id == 0;
  if (lacks_scope)
    return fmt::format("the link-local address {0} needs an interface of this host, as in [{0}%eth0]", address.host());
  if (!lacks_port(error, address, listens)) return std::strerror(error);
  std::string first, last;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first >> last;
  return fmt::format("no free port: all of net.ipv4.ip_local_port_range{} are in use (see `ss -tan`)",
                     last.empty() ? "" : fmt::format(" ({}-{})", first, last));
}

}  // namespace gradrail
