#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gradrail::transport::rails {

/// Value of --rails.
struct RailsSetting {
  bool off = false;                ///< one address is used
  std::vector<std::string> hosts;  ///< IP addresses; empty and not off: auto
};

/// "auto", "off", or IP addresses of this host, separated by commas.
/// Errors  INVALID_ARGUMENT: not an IP address, an address twice, more than kMaxRails.
absl::StatusOr<RailsSetting> parse_rails(std::string_view text);

/// "auto" (0) or 1 to kMaxLanes.
/// Errors  INVALID_ARGUMENT: another text.
absl::StatusOr<uint32_t> parse_streams(std::string_view text);

/// The lanes of a worker to a shard: each rail has so many streams. `streams` 0: auto, which fits any number of rails.
/// Errors  INVALID_ARGUMENT: more than kMaxLanes lanes; names the numbers.
absl::Status check_lanes(size_t rail_count, uint32_t streams);
/// The same for values that parse_rails() and parse_streams() accept.
/// Errors  INVALID_ARGUMENT: names both flags as well.
absl::Status check_lanes(std::string_view rails, std::string_view streams);

/// An address of a network interface that belongs to a device.
struct PhysicalLink {
  std::string interface;
  std::string host;
  uint32_t mbit_per_s = 0;  ///< 0: unknown, or the link is down
};
/// The global addresses of one family: AF_INET or AF_INET6.
/// Interfaces without a device are software: lo, bridges, veth.
std::vector<PhysicalLink> physical_links(int family, const std::string& sys = "/sys");

/// The rails of a task that is reached at `host`: that address, and one address of each link of similar speed. Similar
/// is half to twice the speed of its link. Empty: one rail is all there is. Pure.
std::vector<std::string> choose_rails(const std::string& host, const std::vector<PhysicalLink>& links);

/// Describes each link in a line: the rails of a ps that is reached there, or the reason for a single one. Pure.
std::vector<std::string> explain_rails(const std::vector<PhysicalLink>& links);

/// The addresses at which a ps listens. `host`: of its control plane; `is_bound`: it was named by --bind. Empty: `host`
/// alone.
std::vector<std::string> rails_of(const RailsSetting& setting, const std::string& host, bool is_bound);

}  // namespace gradrail::transport::rails
