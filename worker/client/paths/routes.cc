// The routes of a link: through aggregators, and to the shard itself.
#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/control.pb.h"
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

/// The offers in a reply that describes transports.
template <typename Transports>
std::vector<transport::PeerTransport> offers_of(const Transports& transports) {
  std::vector<transport::PeerTransport> offers;
  for (const auto& transport : transports) offers.push_back({transport.name(), transport.refused()});
  return offers;
}

}  // namespace

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
    return absl::UnavailableError(route.why_not);
  }
  route.is_attached = true;
  route.endpoints.clear();
  for (const auto& endpoint : reply->endpoints())
    route.endpoints.push_back({endpoint.transport(), endpoint.address(), endpoint.rails()});
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

const std::vector<ShardLink::Endpoint>& PathManager::endpoints_of(const ShardLink& link, size_t candidate) {
  const ShardLink::Route& route = link.routes[link.route_of[candidate]];
  return route.aggregator.empty() ? link.endpoints : route.endpoints;
}

/// The path in use, with the reasons against those that would have been preferred.
std::string PathManager::explain_path(const ShardLink& link) {
  std::vector<transport::Candidate> same_route;
  std::vector<std::string> refused;
  const size_t route_in_use = link.route_of[link.candidate];
  for (size_t i = 0; i < link.candidates.size(); ++i) {
    if (link.route_of[i] == route_in_use) same_route.push_back(link.candidates[i]);
  }
  for (size_t i = 0; i < route_in_use; ++i) {
    const ShardLink::Route& route = link.routes[i];
    const auto reason = std::find_if(link.candidates.begin(), link.candidates.end(), [&](const auto& candidate) {
      return link.route_of[static_cast<size_t>(&candidate - link.candidates.data())] == i && !candidate.never;
    });
    const std::string why = reason == link.candidates.end() ? "no transport in common" : reason->refused;
    refused.push_back(fmt::format("aggregator {} refused: {}", route.aggregator, why));
  }
  return fmt::format(
      "{}{}{}", transport::explain(same_route, link.candidates[link.candidate].name, link.path->shown_path()),
      link.through(link.candidate), refused.empty() ? "" : fmt::format(" ({})", fmt::join(refused, "; ")));
}

}  // namespace gradrail::worker
