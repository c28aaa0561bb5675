// Candidates better than the replacement of a path are probed beside the path in use, and used again when they work.
#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "worker/client/paths/gpu_transfers.h"
#include "worker/client/paths/path_manager.h"

namespace gradrail::worker {
namespace {

using Phase = ShardPath::Phase;

/// A probe may not delay the exchange beside it: connecting is the part that blocks.
constexpr auto kProbeConnect = std::chrono::milliseconds(300);
constexpr auto kProbeDeadline = std::chrono::seconds(3);
/// Time limit of the switch. Both ends have just received the probe's pattern: the last message takes one round trip.
constexpr auto kSwitchDeadline = std::chrono::seconds(2);

}  // namespace

void PathManager::failback(TimePoint now) {
  next_failback_ = TimePoint::max();
  for (const auto& link : links_) {
    const ShardPath* probe = link->probe.path.get();
    if (probe != nullptr && probe->phase() == Phase::ready) {
      switch_to_probe(*link, now + kSwitchDeadline);
    } else if (probe == nullptr && now >= link->next_probe && !(memory_.gpu() != nullptr && is_probing())) {
      start_probe(*link);
    }
    // A probe under way is looked at before each exchange.
    next_failback_ = std::min(next_failback_, link->probe.path != nullptr ? now : link->next_probe);
  }
}

void PathManager::switch_to_probe(ShardLink& link, TimePoint deadline) {
  GRADRAIL_CHECK(link.probe.path != nullptr && link.probe.candidate < link.candidates.size());
  // The shard answers on the new path from Ready on. No exchange is under way, so no answer is lost.
  link.probe.path->activate();
  const absl::Status switched = establish(*link.probe.path, Phase::active, deadline);
  if (!switched.ok()) return end_probe(link, std::string(message_of(switched)));
  log_warning("shard {} at {}: back on {}", link.shard_index, link.address, link.probe.path->describe());
  telemetry_.count_return();
  link.transfers_refused = std::move(link.probe.refused);
  use(link, std::move(link.probe.path), link.probe.candidate);
}

bool PathManager::is_probing() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& link) { return link->probe.path != nullptr; });
}

/// Frees the space for the pattern in GPU memory. New probes begin after the failback interval.
void PathManager::drop_probes() {
  for (const auto& link : links_) {
    if (link->probe.path == nullptr) continue;
    link->probe.path.reset();
    link->next_probe = Clock::now() + options_.transport.failback;
  }
}

void PathManager::start_probe(ShardLink& link) {
  GRADRAIL_CHECK(link.probe.path == nullptr);  // invariant 2
  // A path without some of its rails is worse than the same candidate with more of them.
  const bool has_left_out = link.is_up() && !link.path->left_out_text().empty();
  const size_t count = link.candidate + (has_left_out ? 1 : 0);
  for (size_t tried = 0; tried < count; ++tried) {
    // The search starts after the last probed candidate: one that never works again must not hide the next.
    const size_t i = link.probe.candidate = (link.probe.candidate + 1) % count;
    if (link.candidates[i].never) continue;
    absl::StatusOr<std::unique_ptr<ShardPath>> path = open_probe(link, i);
    if (i == link.candidate) {
      if (!path.ok() || (*path)->connection().lanes() <= link.path->connection().lanes()) continue;
    }
    if (path.ok()) {
      link.probe.path = *std::move(path);
      link.probe.deadline = Clock::now() + kProbeDeadline;
      link.probe.path->advance();
      return;
    }
    link.candidates[i].refused = message_of(path.status());
  }
  close_unused_contexts();
  link.next_probe = Clock::now() + options_.transport.failback;
}

/// Each probe tests one way: a way that failed in the last probe of this candidate is skipped.
absl::StatusOr<std::unique_ptr<ShardPath>> PathManager::open_probe(ShardLink& link, size_t candidate) {
  link.probe.refused.clear();
  for (const GpuTransfer way : ways_to_try(options_, link)) {
    GRADRAIL_ASSIGN_OR_RETURN(const Target where, target(link, candidate));
    GRADRAIL_ASSIGN_OR_RETURN(OpenContext* const context, open_context(where));
    absl::Status usable = reach_gpu(*context, way);
    if (link.probe.rejected.contains({candidate, way})) usable.Update(absl::UnavailableError("its check failed"));
    if (!usable.ok()) {
      link.probe.refused[way] = message_of(usable);
      continue;
    }
    link.probe.way = way;
    return open_path(link, *context, where.address, way, Clock::now() + kProbeConnect);
  }
  link.probe.rejected.clear();  // the next probe begins with the best way again
  return absl::FailedPreconditionError("no path to and from GPU memory worked there the last time");
}

void PathManager::end_probe(ShardLink& link, const std::string& why) {
  log_info("shard {} at {}: {} does not work yet: {}", link.shard_index, link.address,
           link.candidates[link.probe.candidate].name, why);
  link.candidates[link.probe.candidate].refused = why;
  // The next probe leaves out what may have been the cause: first the shard's GPU, then the way.
  if (link.probe.path != nullptr && link.probe.path->slots_on_gpu()) {
    link.host_slots = true;
  } else if (link.probe.path != nullptr && link.probe.path->was_welcome() && link.probe.way != GpuTransfer::staged) {
    link.probe.rejected.insert({link.probe.candidate, link.probe.way});
  }
  link.probe.path.reset();
  close_unused_contexts();
  link.next_probe = Clock::now() + options_.transport.failback;
}

bool PathManager::advance_probes() {
  if (next_failback_ == TimePoint::max()) return false;  // the common case: nothing was ever replaced
  bool in_need = false;
  for (const auto& link : links_) {
    ShardPath* probe = link->probe.path.get();
    if (probe == nullptr) continue;
    in_need = probe->advance() || in_need;
    if (probe->phase() == Phase::ready) {
      // Ready, it waits for the end of the exchange. A probe that may not be used ends here.
      const absl::Status allowed = check_rdma(*probe);
      if (probe->way() != link->probe.way) {
        end_probe(*link, probe->device_refused());
      } else if (!allowed.ok()) {
        end_probe(*link, std::string(message_of(allowed)));
      }
    } else if (probe->phase() == Phase::failed) {
      end_probe(*link, probe->why());
    } else if (Clock::now() >= link->probe.deadline) {
      end_probe(*link, "a transfer to the shard and back did not arrive in time");
    }
  }
  return in_need;
}

}  // namespace gradrail::worker
