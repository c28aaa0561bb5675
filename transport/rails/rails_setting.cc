#include "transport/rails/rails_setting.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "absl/strings/str_split.h"
#include "base/net_address.h"
#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "transport/rails/greeting.h"
#include "transport/rails/link_speed.h"

namespace gradrail::transport::rails {
absl::StatusOr<RailsSetting> parse_rails(std::string_view text) {
  if (text == "auto") return RailsSetting{};
  if (text == "off") return RailsSetting{.off = true};
  RailsSetting setting{.hosts = absl::StrSplit(std::string(text), ',')};
  for (size_t i = 0; i < setting.hosts.size(); ++i) {
    const std::string& host = setting.hosts[i];
    if (!is_ip_address(host, AF_INET) && !is_ip_address(host, AF_INET6))
      return absl::InvalidArgumentError(
          fmt::format("'{}' is not an IP address (auto, off, or addresses of this host: 10.0.0.1,10.1.0.1)", host));
    if (const auto address = resolve(host, 0); address.ok() && address->front().is_any())
      return absl::InvalidArgumentError(
          fmt::format("'{}' stands for all interfaces, and a rail is one: name its address, or auto", host));
    if (std::find(setting.hosts.begin(), setting.hosts.begin() + static_cast<ptrdiff_t>(i), host) !=
        setting.hosts.begin() + static_cast<ptrdiff_t>(i))
      return absl::InvalidArgumentError(fmt::format("'{}' names {} twice", text, host));
  }
  if (setting.hosts.size() > kMaxRails)
    return absl::InvalidArgumentError(
        fmt::format("{} addresses, and {} is the limit", setting.hosts.size(), kMaxRails));
  return setting;
}

absl::StatusOr<uint32_t> parse_streams(std::string_view text) {
  if (text == "auto") return 0U;
  const std::optional<uint32_t> number = parse_number<uint32_t>(text);
  if (number && *number >= 1 && *number <= kMaxLanes) return *number;
  return absl::InvalidArgumentError(fmt::format("'{}' is not auto or a number from 1 to {}", text, kMaxLanes));
}

absl::Status check_lanes(size_t rail_count, uint32_t streams) {
  const uint64_t lanes = uint64_t{rail_count} * streams;
  if (lanes <= kMaxLanes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} rail{} of {} streams are {} lanes, and {} is the limit; give --streams {} or less", rail_count,
                  rail_count == 1 ? "" : "s", streams, lanes, kMaxLanes, kMaxLanes / rail_count));
}

absl::Status check_lanes(std::string_view rails, std::string_view streams) {
  GRADRAIL_ASSIGN_OR_RETURN(const RailsSetting setting, parse_rails(rails));
  GRADRAIL_ASSIGN_OR_RETURN(const uint32_t count, parse_streams(streams));
  const absl::Status fits = check_lanes(setting.hosts.size(), count);
  if (fits.ok()) return fits;
  return absl::InvalidArgumentError(fmt::format("--rails {} --streams {}: {}", rails, streams, message_of(fits)));
}

std::vector<PhysicalLink> physical_links(int family, const std::string& sys) {
  std::vector<PhysicalLink> links;
  for (const LinkAddress& each : link_addresses()) {
    if (each.address.family() != family) continue;
    const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(each.address.get());
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
    std::error_code error;
    if (!std::filesystem::exists(std::filesystem::path(sys) / "class/net" / each.interface / "device", error)) continue;
    links.push_back({each.interface, each.address.host(), speed_of(each.interface, sys)});
  }
  return links;
}

std::vector<std::string> choose_rails(const std::string& host, const std::vector<PhysicalLink>& links) {
  const auto ours =
      std::find_if(links.begin(), links.end(), [&](const PhysicalLink& link) { return link.host == host; });
  if (ours == links.end() || ours->mbit_per_s == 0) return {};
  std::vector<const PhysicalLink*> chosen = {&*ours};
  for (const PhysicalLink& link : links) {
    const bool is_similar = 2 * link.mbit_per_s >= ours->mbit_per_s && link.mbit_per_s <= 2 * ours->mbit_per_s;
    // A second address of one interface is no second link.
    const bool is_new = std::none_of(chosen.begin(), chosen.end(),
                                     [&](const PhysicalLink* other) { return other->interface == link.interface; });
    if (is_similar && is_new && chosen.size() < kMaxRails) chosen.push_back(&link);
  }
  if (chosen.size() == 1) return {};
  std::vector<std::string> hosts;
  for (const PhysicalLink* link : chosen) hosts.push_back(link->host);
  return hosts;
}

std::vector<std::string> explain_rails(const std::vector<PhysicalLink>& links) {
  std::vector<std::string> lines;
  for (const PhysicalLink& link : links) {
    const std::vector<std::string> rails = choose_rails(link.host, links);
    const std::string reason =
        link.mbit_per_s == 0 ? fmt::format("{} reports no speed", link.interface) : "no other link has a similar speed";
    const std::string speed = link.mbit_per_s == 0 ? "unknown speed" : fmt::format("{} Mb/s", link.mbit_per_s);
    lines.push_back(fmt::format("a ps at {} ({}, {}): {}", link.host, link.interface, speed,
                                rails.empty() ? "one rail: " + reason : fmt::format("{}", fmt::join(rails, ", "))));
  }
  return lines;
}

std::vector<std::string> rails_of(const RailsSetting& setting, const std::string& host, bool is_bound) {
  if (setting.off) return {};
  if (!setting.hosts.empty()) return setting.hosts;
  if (is_bound) return {};
  const auto found = resolve(host, 0);
  if (!found.ok() || found->front().is_loopback()) return {};
  return choose_rails(found->front().host(), physical_links(found->front().family()));
}

}  // namespace gradrail::transport::rails
