// The routes of a link: through aggregators, and to the shard itself.
#include <algorithm>

#include "base/check.h"
#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/path_check.h"
#include "spdlog/spdlog.h"
#include "transport/registry.h"
#include "worker/client/paths/gpu_transfers.h"
#include "worker/client/paths/path_manager.h"

namespace gradrail::worker {
namespace {

/// An aggregator answers at once. It may have to allocate the memory of a session.
constexpr auto kAttachDeadline = std::chrono::seconds(2);
/// The candidates of one aggregator are tried one after the other: one failure counts for all of them.
constexpr auto kAttachAgain = std::chrono::seconds(1);
/// The session of an aggregator does not answer while it connects to its shard (1 s), or sums large buckets.
constexpr Duration kShortestSilence = std::chrono::seconds(4);

/// The offers in a reply that describes transports.
template <typename Transports>
std::vector<transport::PeerTransport> offers_of(const Transports& transports) {
  std::vector<transport::PeerTransport> offers;
  for (const auto& transport : transports) offers.push_back({transport.name(), transport.refused()});
  return offers;
}

/// The other end does not know by which interface of this host it is reached: as its control plane is, `address`.
ShardLink::Endpoint endpoint_at(const std::string& address, const ps::proto::JoinReply::Endpoint& endpoint) {
  return {endpoint.transport(), with_scope_of(address, endpoint.address()), with_scope_of(address, endpoint.rails())};
}

std::vector<transport::Candidate> candidates_of(const ShardLink& link, size_t route) {
  std::vector<transport::Candidate> found;
  for (size_t i = 0; i < link.candidates.size(); ++i) {
    if (link.route_of[i] == route) found.push_back(link.candidates[i]);
  }
  return found;
}

/// Why the aggregator of a route is not in use.
std::string reason_against(const ShardLink& link, size_t route) {
  const std::vector<transport::Candidate> candidates = candidates_of(link, route);
  const auto reason = std::find_if(candidates.begin(), candidates.end(), [](const auto& each) { return !each.never; });
  return reason == candidates.end() ? "no transport in common" : reason->refused;
}

/// The reasons against the aggregators before the route in use; "": there is none.
std::string explain_refused(const ShardLink& link) {
  std::vector<std::string> refused;
  for (size_t i = 0; i < link.route_of[link.candidate]; ++i)
    refused.push_back(fmt::format("aggregator {} refused: {}", link.routes[i].aggregator, reason_against(link, i)));
  return fmt::format("{}", fmt::join(refused, "; "));
}

}  // namespace

void set_endpoints(ShardLink& link, const ps::proto::JoinReply::Shard& shard) {
  link.endpoints.clear();
  for (const auto& endpoint : shard.endpoints()) link.endpoints.push_back(endpoint_at(link.address, endpoint));
}

void PathManager::set_server(ShardLink& link, const ps::proto::DescribeReply& described) {
  const std::string host_id = transport::host_id();
  link.host_id = described.host_id();
  link.ipc_refused = why_not_ipc(options_, described, host_id == described.host_id(), link.server);
  link.candidates.clear();
  link.routes.clear();
  link.route_of.clear();
  // Each group has an aggregator of its own first. The other aggregators follow in the order of the list.
  const size_t count = options_.aggregators.size();
  const size_t first = count == 0 ? 0 : options_.task_index / options_.sum_group % count;
  for (size_t i = 0; i < count; ++i) {
    link.routes.push_back({.aggregator = options_.aggregators[(first + i) % count]});
    for (const std::string& name : options_.transports) {
      link.candidates.push_back({.name = name});
      link.route_of.push_back(i);
    }
  }
  link.routes.emplace_back();  // to the shard
  for (transport::Candidate& candidate :
       transport::rank_candidates(options_.transports, offers_of(described.transports()), host_id, described.host_id(),
                                  options_.security.encrypt_data)) {
    link.candidates.push_back(std::move(candidate));
    link.route_of.push_back(count);
  }
  shard_on_gpu_ = shard_on_gpu_ || described.on_gpu();
}

/// Asks the aggregator of a route for the addresses of its session, unless it has answered before.
absl::Status PathManager::attach(ShardLink& link, size_t route_index, TimePoint deadline) {
  ShardLink::Route& route = link.routes[route_index];
  if (route.aggregator.empty() || route.is_attached) return absl::OkStatus();
  const TimePoint now = Clock::now();
  if (now < route.attach_again) return absl::UnavailableError(route.why_not);
  absl::StatusOr<ps::proto::AttachReply> reply =
      attach_(link, route.aggregator, std::min<TimePoint>(deadline, now + kAttachDeadline));
  if (!reply.ok()) {
    route.why_not = message_of(reply.status());
    route.attach_again = Clock::now() + kAttachAgain;
    // The other links need not wait for it, too.
    if (absl::IsDeadlineExceeded(reply.status())) hold_off(route.aggregator, route.why_not);
    return absl::UnavailableError(route.why_not);
  }
  route.is_attached = true;
  route.endpoints.clear();
  for (const auto& endpoint : reply->endpoints()) route.endpoints.push_back(endpoint_at(route.aggregator, endpoint));
  const std::vector<transport::Candidate> ranked =
      transport::rank_candidates(options_.transports, offers_of(reply->transports()), transport::host_id(),
                                 reply->host_id(), options_.security.encrypt_data);
  for (size_t i = 0, next = 0; i < link.candidates.size(); ++i) {
    if (link.route_of[i] != route_index) continue;
    GRADRAIL_CHECK(next < ranked.size());
    link.candidates[i] = ranked[next++];
  }
  return absl::OkStatus();
}

/// No link attaches to this aggregator for a moment.
void PathManager::hold_off(const std::string& aggregator, const std::string& why) {
  for (const auto& link : links_) {
    for (ShardLink::Route& route : link->routes) {
      if (route.aggregator != aggregator) continue;
      route.is_attached = false;
      route.why_not = why;
      route.attach_again = Clock::now() + kAttachAgain;
    }
  }
}

/// A process that is stopped, or a host that vanishes, need not end its connections. Workers that wait for each other
/// look the same, but for the answer to a ping.
void PathManager::ping_aggregators(TimePoint now) {
  for (const auto& link : links_) {
    if (!link->is_up() || link->routes[link->route_of[link->candidate]].aggregator.empty()) continue;
    const Duration silence = link->path->ping(now);
    const Duration limit = std::max<Duration>(options_.path_timeout, kShortestSilence) +
                           ps::allocation_time(link->range.count * sizeof(float));
    if (silence < limit) continue;
    const std::string why =
        fmt::format("it has not answered for {:.1f} s", std::chrono::duration<double>(silence).count());
    link->path->on_lost(why);
    path_lost_ = true;
    hold_off(link->routes[link->route_of[link->candidate]].aggregator, why);
  }
}

const std::vector<ShardLink::Endpoint>& PathManager::endpoints_of(const ShardLink& link, size_t candidate) {
  const ShardLink::Route& route = link.routes[link.route_of[candidate]];
  return route.aggregator.empty() ? link.endpoints : route.endpoints;
}

std::string explain_path(const ShardLink& link) {
  const std::vector<transport::Candidate> same_route = candidates_of(link, link.route_of[link.candidate]);
  const std::string refused = explain_refused(link);
  return fmt::format("{}{}{}",
                     transport::explain(same_route, link.candidates[link.candidate].name, link.path->shown_path()),
                     link.through(link.candidate), refused.empty() ? "" : fmt::format(" ({})", refused));
}

std::string explain_none(const ShardLink& link) {
  if (link.routes.size() == 1) return transport::explain_none(link.candidates);
  std::string text;
  for (size_t i = 0; i + 1 < link.routes.size(); ++i)
    text += fmt::format("through aggregator {}: {}", link.routes[i].aggregator,
                        transport::explain_reasons(candidates_of(link, i)));
  return fmt::format("{}without aggregators: {}", text,
                     transport::explain_none(candidates_of(link, link.routes.size() - 1)));
}

/// The run goes on without the aggregators. Without a message its steps would only be slower.
void PathManager::report_routes() {
  const auto around = std::find_if(links_.begin(), links_.end(), [](const auto& link) {
    return link->is_up() && link->routes.size() > 1 && link->route_of[link->candidate] + 1 == link->routes.size();
  });
  if (goes_around_ == (around != links_.end())) return;
  goes_around_ = !goes_around_;
  if (!goes_around_) return spdlog::warn("all gradients pass through aggregators again");
  const std::string again =
      options_.failback > Duration::zero() && options_.fallback
          ? fmt::format("tries them again every {} s", std::chrono::duration<double>(options_.failback).count())
          : "does not try them again (--failback_secs 0)";
  spdlog::warn(
      "shard {} at {}: gradients go around the aggregators, and the link of the shard carries those of each "
      "worker; this worker {} ({})",
      (*around)->shard_index, (*around)->address, again, explain_refused(**around));
}

}  // namespace gradrail::worker
