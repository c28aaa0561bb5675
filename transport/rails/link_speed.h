#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/net_address.h"

namespace gradrail::transport::rails {

/// The network interface of this host that reaches an address, or has it.
struct Link {
  std::string local_host;   ///< this host's address on the link; "": no route, or not an IP address
  std::string interface;    ///< "eth0"; may be empty
  uint32_t mbit_per_s = 0;  ///< 0: unknown, as for virtual interfaces
};

/// "10.0.0.1" of "10.0.0.1:4000" and of "10.0.0.1:4000#key", "fd00::1" of "[fd00::1]:4000".
std::string host_of(const std::string& address);

/// An address of this host.
struct LinkAddress {
  std::string interface;
  NetAddress address;
};
/// All IPv4 and IPv6 addresses of this host; none if the kernel does not list them.
std::vector<LinkAddress> link_addresses();

/// Megabits per second of an interface; 0: unknown, or the link is down.
uint32_t speed_of(const std::string& interface, const std::string& sys);

/// Queries the kernel's routing table; sends nothing. `address`: "10.0.0.1:4000" or "[fd00::1]:4000".
/// Threads  Any.
Link link_towards(const std::string& address, const std::string& sys = "/sys");

/// TCP connections on one link for `--streams auto`. One flow carries 30 to 40 Gb/s: a core copies its bytes.
uint32_t auto_streams(uint32_t mbit_per_s);

}  // namespace gradrail::transport::rails
