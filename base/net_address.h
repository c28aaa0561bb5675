#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "gradrail/clock.h"

namespace gradrail {

/// An IPv4 or IPv6 address with its port.
struct NetAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  /// "10.0.0.1", "fd00::1" or, with the scope of a link-local address, "fe80::1%eth0".
  std::string host() const;
  /// "10.0.0.1:2223", "[fd00::1]:2223" or "[fe80::1%eth0]:2223".
  std::string text() const;
  uint16_t port() const;
  void set_port(uint16_t port);
  bool is_loopback() const;
  bool is_any() const;  ///< whether it means all interfaces of the host
};

/// Whether the text is an IPv4 or IPv6 loopback address. Names are not resolved.
bool is_loopback_host(std::string_view host);

/// Whether the text is the address of all interfaces of the host: 0.0.0.0 or ::.
bool is_any_host(std::string_view host);

/// Removes the scope from each address in brackets: "[fe80::1%eth0]:2223" becomes "[fe80::1]:2223". A scope names an
/// interface of this host: no other host may receive it.
std::string without_scopes(std::string_view text);

/// Adds the scope of `via` ("[fe80::1%eth0]:2222", an address of the same host) to each link-local address in brackets
/// that has none.
std::string with_scope_of(std::string_view via, std::string_view text);

/// Whether the text is an IP address of the family, AF_INET or AF_INET6, which may have a scope.
bool is_ip_address(const std::string& text, int family);

/// All addresses of a host for TCP, at least one, in the order of the resolver. "" is the address to listen at on all
/// interfaces. Blocks as long as the resolver does.
/// Errors  UNAVAILABLE: the message of the resolver.
absl::StatusOr<std::vector<NetAddress>> resolve(const std::string& host, uint16_t port);

/// 0, or the errno with which the kernel refuses to bind a TCP socket to the address.
int bind_error(const NetAddress& address);

/// Checks the address of a flag such as --bind: `host` must be an address of this host, or a name with such an address.
/// Errors  FAILED_PRECONDITION: the host, the cause, and the addresses of this host.
absl::Status check_own_address(const std::string& host);

/// The address of a socket's own end, or of its peer.
NetAddress local_address(int fd);
NetAddress peer_address(int fd);

/// Opens a non-blocking TCP socket that listens at the address, also while connections of a former process end.
/// `only_v6`: an IPv6 socket does not take IPv4 connections. Returns 0 or the errno of the failure.
int listen_at(const NetAddress& address, bool only_v6, FileDescriptor& listener);

/// Waits until poll() reports one of `events`. Returns 0, an errno, or ETIMEDOUT at the deadline.
int wait_ready(int fd, short events, TimePoint deadline);

/// Connects a non-blocking TCP socket and waits for the result. Returns 0, the errno of the failure, or EINPROGRESS at
/// the deadline. A socket that the kernel has connected to itself counts as refused.
int connect_until(int fd, const NetAddress& address, TimePoint deadline);

/// Waits until the kernel of the peer has acknowledged all that was sent over this socket. Returns 0, an errno, or
/// ETIMEDOUT at the deadline.
int wait_acknowledged(int fd, TimePoint deadline);

/// Send the begin and the rest of a request that the gate of a task (ps/admission) does not answer: it has no end. The
/// rest fills a packet of 1500 bytes. If only the begin is acknowledged, small packets pass and large ones do not.
void send_small_part(int fd);
void send_large_part(int fd);

/// The remedy for send_large_part() without an acknowledgement.
inline constexpr const char* kLargePacketsLost =
    "small packets pass and large ones do not: a device between the two hosts has a smaller MTU, and its ICMP messages "
    "are "
    "dropped (permit ICMP, or lower the MTU of both hosts)";

/// Whether the errno of a listener, or of connect() otherwise, states that the kernel has no free port for the address.
bool lacks_port(int error, const NetAddress& address, bool listens);
/// The words for an errno of a listener, or of connect() otherwise. "no free port: all of net.ipv4.ip_local_port_range
/// (32768-60999) are in use"; the remedy for a link-local address without a scope; else those of strerror().
std::string socket_error_text(int error, const NetAddress& address, bool listens);

}  // namespace gradrail
