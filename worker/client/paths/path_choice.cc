// The choice of a path: each candidate transport in the order of preference, and over it each way to GPU memory.
#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/mac.h"
#include "ps/protocol/path_check.h"
#include "transport/rails/bundle_context.h"
#include "transport/registry.h"
#include "worker/client/paths/gpu_transfers.h"
#include "worker/client/paths/path_manager.h"
#include "worker/client/session/stop.h"

namespace gradrail::worker {
namespace {

using Phase = ShardPath::Phase;

/// Time limit of one attempt over one transport: a working connection, handshake and mapping take milliseconds. A large
/// model gets more time for its memory, and a slow network (path_timeout) gets more time for its messages.
constexpr auto kConnectDeadline = std::chrono::seconds(10);
/// Rounds over all candidates begin for so long: the network may be interrupted for a moment.
constexpr auto kConnectLimit = std::chrono::seconds(20);
constexpr auto kBetweenConnects = std::chrono::milliseconds(300);

std::string advice_against(ShardLink::Obstacle obstacle) {
  switch (obstacle) {
    case ShardLink::Obstacle::port:
      return ": a firewall between the two hosts is likely. Open the data port, which --data-port of the parameter "
             "server fixes";
    case ShardLink::Obstacle::size:
      return fmt::format(", and {}", kLargePacketsLost);
    case ShardLink::Obstacle::other:
      break;
  }
  return "";
}

}  // namespace

/// Connects one shard. A failure of the data path alone is final: the next start of this worker has the same network
/// and the same limits of the server.
absl::Status PathManager::connect(ShardLink& link, TimePoint deadline) {
  const TimePoint last_round = std::min(deadline, Clock::now() + kConnectLimit);
  const std::vector<transport::Candidate> candidates = link.candidates;
  while (true) {
    absl::Status connected = try_candidates(link, deadline);
    const bool may_pass = absl::IsUnavailable(connected) && failure_.status().ok() && !asked_to_stop(options_);
    // During a failover, the loss of the successor is no failure of the run yet.
    if (!may_pass || failure_.has_lost_server(link.ps_index)) return connected;
    if (Clock::now() >= last_round) {
      // A ps that was lost at the same time is another cause.
      GRADRAIL_RETURN_IF_ERROR(answers_(link.ps_index));
      return absl::FailedPreconditionError(fmt::format("{}; {} answers on its control connection{}",
                                                       message_of(connected), link.server,
                                                       advice_against(link.obstacle)));
    }
    link.candidates = candidates;  // candidates without the reasons of this round
    wait_events(Clock::now() + kBetweenConnects);
  }
}

absl::Status PathManager::try_candidates(ShardLink& link, TimePoint deadline) {
  GRADRAIL_CHECK(link.path == nullptr && link.bucket_count > 0);
  bool may_change = false;  // whether another attempt could succeed
  for (size_t i = 0; i < link.candidates.size(); ++i) {
    transport::Candidate& candidate = link.candidates[i];
    if (candidate.refused.empty()) {
      // No candidate waits for the end of the last attempt.
      const bool last =
          !options_.transport.fallback || std::all_of(link.candidates.begin() + i + 1, link.candidates.end(),
                                                      [](const auto& other) { return !other.refused.empty(); });
      const Duration limit =
          transport::scaled_limit(last ? kConnectLimit : kConnectDeadline, options_.transport.path_timeout) +
          ps::allocation_time(link.range.count * sizeof(float));
      const absl::Status connected = try_candidate(link, i, std::min(deadline, Clock::now() + limit));
      if (connected.ok()) return absl::OkStatus();
      GRADRAIL_RETURN_IF_ERROR(failure_.status());
      // The reason appears in texts about the choice. Probes use it too: a candidate with a reason may be tried again
      // later.
      candidate.refused = message_of(connected);
      // A limit of this process (RESOURCE_EXHAUSTED) stays what it is.
      may_change = may_change || !(absl::IsFailedPrecondition(connected) || absl::IsResourceExhausted(connected));
    }
    if (!options_.transport.fallback) {
      return absl::FailedPreconditionError(
          fmt::format("shard {} at {}: transport {} refused: {} (and fallback is forbidden)", link.shard_index,
                      link.address, candidate.name, candidate.refused));
    }
  }
  const std::string why = fmt::format("shard {} at {}: no transport can be used: {}", link.shard_index, link.address,
                                      transport::explain_none(link.candidates));
  // Two lists without a common transport, or a missing device: another start would end in the same way.
  return may_change ? absl::UnavailableError(why) : absl::FailedPreconditionError(why);
}

absl::StatusOr<PathManager::Target> PathManager::target(const ShardLink& link, size_t candidate) const {
  if (link.candidates[candidate].never) return absl::FailedPreconditionError(link.candidates[candidate].refused);
  const std::string& name = link.candidates[candidate].name;
  const std::vector<ShardLink::Endpoint>& endpoints = link.endpoints;
  const auto endpoint =
      std::find_if(endpoints.begin(), endpoints.end(), [&](const auto& e) { return e.transport == name; });
  if (endpoint == endpoints.end()) return absl::UnavailableError("the other end does not listen on it");
  const std::string lanes =
      transport::rails::address_of_lanes(endpoint->rails, options_.transport.rails, options_.transport.streams);
  if (lanes.empty()) return Target{name, endpoint->address, OpenContext::Lanes::one};
  const bool has_rails = lanes.find(',') != std::string::npos;
  return Target{name, lanes, has_rails ? OpenContext::Lanes::rails : OpenContext::Lanes::streams};
}

absl::StatusOr<std::unique_ptr<ShardPath>> PathManager::open_path(ShardLink& link, OpenContext& context,
                                                                  const std::string& address, GpuTransfer way,
                                                                  TimePoint deadline) {
  // The shard admits this connection by a proof with the token that the member has received when it joined.
  ps::proto::JoinPath join_path;
  *join_path.mutable_member() = identity_.member();
  join_path.set_host_slots(link.host_slots);
  const auto prove = [key = ps::data_key(options_.security.secret, link.token)](ps::proto::JoinPath& join,
                                                                                const std::string& challenge) {
    join.set_proof(ps::mac_of(key, {challenge}));
  };
  return ShardPath::open(link, context, address, join_path, prove, registered_, options_.placement.place_memory,
                         {memory_.gpu(), way}, deadline);
}

/// Drives the handshake of one path. Events of all other paths are delivered meanwhile: the exchange continues.
absl::Status PathManager::establish(ShardPath& path, Phase until, TimePoint deadline) {
  while (path.phase() != until) {
    const bool in_need = path.advance();
    if (path.phase() == Phase::failed) return absl::UnavailableError(path.why());
    GRADRAIL_RETURN_IF_ERROR(failure_.status());
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(path.phase() == Phase::checking
                                             ? "a transfer to the shard and back did not arrive in time"
                                             : "the shard did not answer in time");
    }
    // A path without room for its message has no event to announce room: the loop polls it every millisecond.
    const auto timeout = std::chrono::milliseconds(in_need ? 1 : 100);
    wait_events(std::min(deadline, Clock::now() + timeout));
  }
  return absl::OkStatus();
}

/// Known only now: some transports choose the device after the first transfer.
absl::Status PathManager::check_rdma(const ShardPath& path) const {
  if (!options_.transport.require_rdma || path.connection().uses_rdma()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{} is carried by no RDMA device, and RDMA is required", path.connection().path()));
}

/// Tests each way to GPU memory over one candidate, the best first. A fault of the candidate itself ends the test.
absl::Status PathManager::try_candidate(ShardLink& link, size_t candidate, TimePoint deadline) {
  link.transfers_refused.clear();
  link.host_slots = false;
  for (const GpuTransfer way : ways_to_try(options_, link)) {
    absl::Status tried = try_gpu_transfer(link, candidate, way, deadline);
    if (started_ && link.transfers_refused.erase(way) > 0) {
      // The way has worked before, so that the fault may be the connection's. Without a second attempt the link would
      // keep staging: failback does not leave the best candidate for a better way.
      tried = try_gpu_transfer(link, candidate, way, deadline);
    }
    if (!link.transfers_refused.contains(way)) return tried;
    GRADRAIL_RETURN_IF_ERROR(failure_.status());
  }
  return no_way_left(options_, link);
}

absl::Status PathManager::try_gpu_transfer(ShardLink& link, size_t candidate, GpuTransfer way, TimePoint deadline) {
  const auto refuse = [&](std::string_view why) {
    return absl::FailedPreconditionError(link.transfers_refused[way] = why);
  };
  GRADRAIL_ASSIGN_OR_RETURN(const Target where, target(link, candidate));
  const absl::StatusOr<OpenContext*> opened = open_context(where);
  // The cause is this host, its limits or its environment: the next round would find the same.
  if (!opened.ok()) return absl::FailedPreconditionError(opened.status().message());
  OpenContext* const context = *opened;
  if (const absl::Status reached = reach_gpu(*context, way); !reached.ok()) return refuse(message_of(reached));
  if (memory_.gpu() != nullptr) drop_probes();  // invariant 2
  const bool crosses_network = !(*transport::find_transport(where.transport))->same_host_only;
  absl::StatusOr<std::unique_ptr<ShardPath>> begun = open_path(link, *context, where.address, way, deadline);
  if (!begun.ok()) {
    // Any other error means that memory or descriptors of this host are missing.
    const bool is_silent = absl::IsUnavailable(begun.status()) || absl::IsDeadlineExceeded(begun.status());
    if (crosses_network) link.obstacle = is_silent ? ShardLink::Obstacle::port : ShardLink::Obstacle::other;
    return begun.status();
  }
  std::unique_ptr<ShardPath> path = *std::move(begun);
  const absl::Status checked = establish(*path, Phase::ready, deadline);
  if (crosses_network) {
    const bool is_silent = absl::IsDeadlineExceeded(checked) ? path->phase() == Phase::checking : path->lost_in_check();
    link.obstacle = is_silent ? ShardLink::Obstacle::size : ShardLink::Obstacle::other;
  }
  GRADRAIL_RETURN_IF_ERROR(failure_.status());
  if (!checked.ok() && path->slots_on_gpu()) {
    // Either GPU may be the cause. A second test without the shard's GPU decides.
    log_warning("shard {}: the path into its GPU's memory does not work: {}", link.shard_index, message_of(checked));
    link.host_slots = true;
    path.reset();
    return try_gpu_transfer(link, candidate, way, deadline);
  }
  // The shard has answered, so that the connection works and the way does not: the next way is tried over it.
  if (!checked.ok() && path->was_welcome() && way != GpuTransfer::staged) return refuse(message_of(checked));
  GRADRAIL_RETURN_IF_ERROR(checked);
  if (path->way() != way) return refuse(path->device_refused());
  GRADRAIL_RETURN_IF_ERROR(check_rdma(*path));
  path->activate();
  GRADRAIL_RETURN_IF_ERROR(establish(*path, Phase::active, deadline));
  use(link, std::move(path), candidate);
  return absl::OkStatus();
}

void PathManager::use(ShardLink& link, std::unique_ptr<ShardPath> path, size_t candidate) {
  GRADRAIL_CHECK(path->phase() == Phase::active);  // invariant 1
  GRADRAIL_CHECK(candidate < link.candidates.size());
  link.path = std::move(path);
  link.candidate = candidate;
  link.candidates[candidate].refused.clear();
  link.bytes = &path_bytes_[link.path->name()];
  // A better candidate that this host or the peer can never use is no reason to probe again.
  const auto better_lost = [&](const transport::Candidate& other) { return !other.never && !other.refused.empty(); };
  const auto end = link.candidates.begin() + static_cast<ptrdiff_t>(candidate);
  const bool is_best = std::none_of(link.candidates.begin(), end, better_lost) && link.path->left_out_text().empty();
  const bool stays = options_.transport.failback == Duration::zero() || !options_.transport.fallback;
  link.next_probe = is_best || stays ? TimePoint::max() : Clock::now() + options_.transport.failback;
  next_failback_ = std::min(next_failback_, link.next_probe);
}

}  // namespace gradrail::worker
