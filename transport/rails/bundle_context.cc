#include "transport/rails/bundle_context.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/log.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "transport/common/byte_codec.h"
#include "transport/rails/link_speed.h"
#include "transport/rails/rails_setting.h"

namespace gradrail::transport::rails {
namespace {

absl::StatusOr<std::vector<std::string>> split(const std::string& addresses) {
  std::vector<std::string> rails = absl::StrSplit(addresses.substr(kLanesPrefix.size()), ',');
  if (rails.size() <= kMaxRails) return rails;
  return absl::InvalidArgumentError(
      fmt::format("{} rails in one address, and {} is the limit", rails.size(), kMaxRails));
}

}  // namespace

std::string address_of_lanes(const std::string& rails, bool several, uint32_t streams) {
  if (!rails.starts_with(kLanesPrefix)) return "";
  const std::string first = rails.substr(0, rails.find(','));
  if (several && first != rails) return rails;
  if (streams == 0) streams = auto_streams(link_towards(first.substr(kLanesPrefix.size())).mbit_per_s);
  return streams > 1 ? first : "";
}

BundleContext::BundleContext(std::unique_ptr<Context> child, uint32_t streams, const Limits& limits)
    : child_(std::move(child)), streams_(streams), limits_(limits) {}

BundleContext::~BundleContext() = default;

absl::StatusOr<std::string> BundleContext::listen(const std::string& address) {
  if (!address.starts_with(kLanesPrefix)) {
    GRADRAIL_ASSIGN_OR_RETURN(std::string listening, child_->listen(address));
    places_.push_back({host_of(listening), true});
    return listening;
  }
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<std::string> rails, split(address));
  std::vector<std::string> listening;
  for (const std::string& rail : rails) {
    GRADRAIL_ASSIGN_OR_RETURN(std::string place, child_->listen(rail));
    places_.push_back({host_of(place), false});
    listening.push_back(std::move(place));
  }
  return fmt::format("{}{}", kLanesPrefix, fmt::join(listening, ","));
}

absl::StatusOr<Connection*> BundleContext::connect_plain(const std::string& address, TimePoint deadline) {
  GRADRAIL_ASSIGN_OR_RETURN(Connection* const connection, child_->connect(address, deadline));
  return add_single(connection, host_of(address));
}

/// A connection of one lane without a greeting.
BundleConnection* BundleContext::add_single(Connection* connection, const std::string& host) {
  std::vector<std::unique_ptr<Lane>> lanes;
  lanes.push_back(std::make_unique<Lane>(Lane{.connection = connection, .host = host}));
  connection->set_user_data(reinterpret_cast<uint64_t>(lanes[0].get()));
  return add(std::make_unique<BundleConnection>(*this, std::move(lanes), std::vector<uint32_t>{0}, 0, "", true));
}

absl::StatusOr<BundleContext::OpenRail> BundleContext::open_rail(const std::string& address, uint32_t most_streams,
                                                                 TimePoint deadline) {
  const Link link = link_towards(address);
  const uint32_t streams = streams_ == 0 ? std::min(auto_streams(link.mbit_per_s), most_streams) : streams_;
  OpenRail rail{.mbit_per_s = link.mbit_per_s / streams};
  for (uint32_t i = 0; i < streams; ++i) {
    const absl::StatusOr<Connection*> connection = child_->connect(address, deadline);
    if (!connection.ok()) {
      for (const auto& lane : rail.lanes) close_lane(*lane);
      return connection.status();
    }
    auto lane = std::make_unique<Lane>(Lane{.connection = *connection, .host = host_of(address)});
    (*connection)->set_user_data(reinterpret_cast<uint64_t>(lane.get()));
    rail.lanes.push_back(std::move(lane));
  }
  return rail;
}

absl::StatusOr<Connection*> BundleContext::connect(const std::string& address, TimePoint deadline) {
  if (!address.starts_with(kLanesPrefix)) return connect_plain(address, deadline);
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<std::string> rails, split(address));
  // Another attempt would have the same numbers. The code makes callers not repeat it.
  if (const absl::Status fits = check_lanes(rails.size(), streams_); !fits.ok())
    return absl::FailedPreconditionError(fits.message());
  const auto most_streams = static_cast<uint32_t>(kMaxLanes / rails.size());
  std::vector<size_t> order;
  for (size_t i = 0; i < rails.size(); ++i) order.push_back(i);
  std::stable_partition(order.begin(), order.end(), [&](size_t i) { return !failed_rails_.contains(rails[i]); });
  std::vector<OpenRail> open(rails.size());
  std::vector<std::string> reasons;
  absl::Status failure;
  for (size_t tried = 0; tried < order.size(); ++tried) {
    const size_t i = order[tried];
    // A rail that does not answer must leave time for the others, and for what follows.
    const Duration left = deadline - Clock::now();
    const TimePoint limit =
        rails.size() == 1 ? deadline : Clock::now() + left / static_cast<int>(order.size() - tried + 1);
    absl::StatusOr<OpenRail> opened = open_rail(rails[i], most_streams, limit);
    if (opened.ok()) {
      open[i] = *std::move(opened);
      failed_rails_.erase(rails[i]);
      continue;
    }
    failed_rails_.insert(rails[i]);
    reasons.push_back(fmt::format("{}: {}", host_of(rails[i]), message_of(opened.status())));
    failure.Update(opened.status());
  }
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<uint32_t> speeds;
  for (OpenRail& rail : open) {
    for (auto& lane : rail.lanes) {
      speeds.push_back(rail.mbit_per_s);
      lanes.push_back(std::move(lane));
    }
  }
  if (lanes.empty()) return failure;
  if (absl::Status greeted = greet(lanes, speeds); !greeted.ok()) {
    for (const auto& lane : lanes) close_lane(*lane);
    return greeted;
  }
  count_rails(lanes);
  return add(std::make_unique<BundleConnection>(*this, std::move(lanes), speeds, reasons.size(),
                                                fmt::format("{}", fmt::join(reasons, "; ")), false));
}

absl::Status BundleContext::greet(const std::vector<std::unique_ptr<Lane>>& lanes,
                                  const std::vector<uint32_t>& mbit_per_s) {
  GRADRAIL_CHECK(lanes.size() <= kMaxLanes);
  Greeting greeting{.id = random_bytes(kBundleIdBytes), .lanes = static_cast<uint32_t>(lanes.size())};
  for (size_t i = 0; i < lanes.size(); ++i) {
    greeting.lane = static_cast<uint32_t>(i);
    greeting.mbit_per_s = mbit_per_s[i];
    GRADRAIL_RETURN_IF_ERROR(lanes[i]->connection->send(common::as_bytes(greeting.encode())));
  }
  return absl::OkStatus();
}

void BundleContext::count_rails(const std::vector<std::unique_ptr<Lane>>& lanes) {
  for (const auto& lane : lanes) lane->bytes = &rail_traffic_[{lane->connection->path(), lane->host}];
}

BundleConnection* BundleContext::add(std::unique_ptr<BundleConnection> connection) {
  connections_.push_back(std::move(connection));
  return connections_.back().get();
}

void BundleContext::close_lane(Lane& lane) { child_->close(lane.connection); }

void BundleContext::close(Connection* connection) {
  const auto place = std::find_if(connections_.begin(), connections_.end(),
                                  [&](const auto& each) { return each.get() == connection; });
  GRADRAIL_CHECK(place != connections_.end());
  for (const auto& lane : (*place)->all_lanes()) close_lane(*lane);
  ready_.forget(connection);
  std::erase(waiting_, place->get());
  connections_.erase(place);
}

void BundleContext::lose(BundleConnection* connection, const absl::Status& cause) {
  if (connection->lost()) return;
  connection->set_lost();
  Completion lost;
  lost.kind = Completion::Kind::peer_lost;
  lost.connection = connection;
  lost.cause = cause;
  report(std::move(lost));
}

bool BundleContext::arm() {
  const bool may_block = child_->arm();
  return may_block && ready_.empty();
}

}  // namespace gradrail::transport::rails
