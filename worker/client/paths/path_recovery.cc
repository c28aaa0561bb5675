// Replaces a path that was lost during the run. The exchange repeats the pushes without an answer.
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "worker/client/paths/path_manager.h"
#include "worker/client/session/stop.h"

namespace gradrail::worker {
namespace {

/// Time limit of one attempt. Other workers may wait meanwhile: a slower path is skipped, and tested again in the next
/// round.
constexpr auto kReplaceAttempt = std::chrono::seconds(2);
/// Time after which the worker stops the search. It is shorter than the time for which the shard keeps the worker's
/// place.
constexpr auto kReplaceDeadline = std::chrono::seconds(20);
constexpr auto kBetweenRounds = std::chrono::milliseconds(100);

/// Order of attempts. The lost candidate is last, because it may take its whole time to fail again. Without fallback it
/// is the only one.
std::vector<size_t> order_of_attempts(const ShardLink& link, size_t lost, bool fallback) {
  std::vector<size_t> order;
  for (size_t i = 0; i < link.candidates.size(); ++i) {
    if (i != lost && !link.candidates[i].never && fallback) order.push_back(i);
  }
  order.push_back(lost);
  return order;
}

}  // namespace

absl::Status PathManager::replace_lost_paths() {
  path_lost_ = false;  // a loss from here on sets it again
  for (const auto& link : links_) {
    // A link has no path when its replacement was interrupted, because a ps was lost at the same time.
    const bool lost = link->path == nullptr ? link->bucket_count > 0 : link->path->phase() == ShardPath::Phase::failed;
    if (!lost) continue;
    absl::Status replaced = replace(*link);
    path_lost_ = path_lost_ || !replaced.ok();
    if (!replaced.ok()) return replaced;
  }
  return absl::OkStatus();
}

absl::Status PathManager::replace(ShardLink& link) {
  const TimePoint start = Clock::now();
  const std::string where = fmt::format("shard {} at {}", link.shard_index, link.address);
  const std::string lost = link.path == nullptr ? "its path" : link.path->describe();
  const std::string cause = link.path == nullptr ? "it was not replaced yet" : link.path->why();
  const size_t former = link.candidate;
  GRADRAIL_CHECK(former < link.candidates.size());
  // Both paths are closed first: an open path would keep its context open (invariant 3).
  link.close();
  close_unused_contexts();
  link.candidates[former].refused = fmt::format("lost during the run: {}", cause);
  const std::vector<size_t> order = order_of_attempts(link, former, options_.transport.fallback);
  std::string last_error;
  // All candidates, round after round: the network as a whole may be interrupted for a moment.
  while (Clock::now() < start + kReplaceDeadline) {
    for (const size_t candidate : order) {
      const absl::Status replaced = try_candidate(link, candidate, Clock::now() + kReplaceAttempt);
      if (replaced.ok()) {
        telemetry_.count_move();
        log_warning("{}: {} was lost ({}); continues over {} after {:.2f} s", where, lost, cause, link.path->describe(),
                    seconds_since(start));
        // The call is needed even if a ps was lost at the same time: this path is in use, so no later call repeats its
        // pushes.
        events_.on_path_lost(link);
        return failure_.status();
      }
      GRADRAIL_RETURN_IF_ERROR(failure_.status());
      close_unused_contexts();
      last_error = fmt::format("{}: {}", link.candidates[candidate].name, message_of(replaced));
      if (candidate != former) link.candidates[candidate].refused = message_of(replaced);
    }
    // A ps that has removed this worker reports the reason, and no path changes its decision.
    if (const absl::Status removed = why_removed_(link.ps_index); !removed.ok()) failure_.fail(removed);
    GRADRAIL_RETURN_IF_ERROR(failure_.status());
    if (asked_to_stop(options_)) return absl::CancelledError(fmt::format("stopped while {} was lost", where));
    wait_events(Clock::now() + kBetweenRounds);
  }
  failure_.fail(absl::UnavailableError(fmt::format("{} was lost: {}: {} ({}), and no other path works ({})",
                                                   link.server, where, lost, cause, last_error)));
  return failure_.status();
}

void PathManager::close_paths(uint32_t ps_index) {
  for (const auto& link : links_) {
    if (link->ps_index == ps_index) link->close();
  }
  close_unused_contexts();
}

absl::Status PathManager::connect_again(ShardLink& link, TimePoint deadline) {
  if (link.bucket_count == 0) return absl::OkStatus();
  GRADRAIL_RETURN_IF_ERROR(connect(link, deadline));
  GRADRAIL_CHECK(link.is_up());
  events_.on_path_lost(link);
  return absl::OkStatus();
}

}  // namespace gradrail::worker
