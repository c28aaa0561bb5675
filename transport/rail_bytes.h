#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

namespace gradrail::transport {

/// An address of the accepting side, and the kind of the lanes that lead to it (transport/rails).
struct Rail {
  std::string path;     ///< path of each lane, from Connection::path(): "tcp"
  std::string address;  ///< "10.0.0.1"

  auto operator<=>(const Rail&) const = default;
};

/// The bytes of puts over a rail.
struct RailBytes {
  uint64_t sent = 0;
  uint64_t received = 0;  ///< bytes that Connection::count_received() has added
};

using RailTraffic = std::map<Rail, RailBytes>;

inline void add_traffic(const RailTraffic& more, RailTraffic& sum) {
  for (const auto& [rail, bytes] : more) {
    sum[rail].sent += bytes.sent;
    sum[rail].received += bytes.received;
  }
}

}  // namespace gradrail::transport
