// A ps was lost: it is waited for, and the run goes on from what it has when it is back.
#include <algorithm>

#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"
#include "worker/client_impl.h"

namespace gradrail::worker {
namespace {

constexpr auto kBetweenAttempts = std::chrono::milliseconds(200);
constexpr size_t kMostSeen = 1024;

}  // namespace

bool Client::Impl::may_rejoin() {
  if (go_to_standbys()) return false;
  return failed_.load(std::memory_order_acquire) && options_.rejoin_timeout > Duration::zero() && started_ &&
         !steps_are_done_ &&  // what would have to be done once more, nobody would do
         !rejoining_ && absl::IsUnavailable(failure());
}

absl::Status Client::Impl::rejoin() {
  const absl::Status cause = failure();
  const TimePoint deadline = Clock::now() + options_.rejoin_timeout;
  const uint64_t had_version = global_step();
  options_.notice(fmt::format("{}; waiting up to {} s for it to come back", message_of(cause),
                              std::chrono::duration_cast<std::chrono::seconds>(options_.rejoin_timeout).count()));
  rejoining_ = true;
  const uint64_t come_from = group_;
  const bool were_saving = saves_checkpoints_;
  left_position_ = position();
  unanswered_ = unanswered_step() ? 1 : 0;
  absl::Status joined;
  do {
    let_go();
    joined = rejoin_once(deadline, come_from);
    // What we were may be live for the others yet.
    const bool passes =
        absl::IsUnavailable(joined) || absl::IsFailedPrecondition(joined) || absl::IsAlreadyExists(joined);
    if (joined.ok() || asked_to_stop() || !passes) break;
    std::this_thread::sleep_for(kBetweenAttempts);
  } while (Clock::now() < deadline);
  rejoining_ = false;
  if (!joined.ok()) {
    fail(asked_to_stop() ? absl::CancelledError(fmt::format("stopped while {}", message_of(cause)))
                         : absl::UnavailableError(
                               fmt::format("{}, and did not come back ({})", message_of(cause), message_of(joined))));
    return failure();
  }
  if (were_saving && !saves_checkpoints_)
    options_.notice("no checkpoints are saved any more: a parameter server was started again without --checkpoint_dir");
  const uint64_t redone = left_position_ - std::min(left_position_, position());
  ++stats_.rejoins;
  stats_.redone += redone;
  options_.notice(
      fmt::format("all parameter servers are back: global step {} where it was {}; {} steps of this worker "
                  "are done once more",
                  global_step(), had_version, redone));
  return absl::OkStatus();
}

/// As before the first join, but for what has been registered with transports.
void Client::Impl::let_go() {
  for (size_t i = 0; i < tokens_.size(); ++i) controls_[i]->leave_to_return(member());
  for (const auto& control : controls_) control->stop_heartbeat();
  save_.emplace(controls_);  // waits for its thread, which uses them
  staged_.clear();
  backlog_.clear();
  touched_.clear();
  links_.clear();
  close_unused_contexts();
  controls_.clear();
  tokens_.clear();
  barrier_generation_.clear();
  {
    std::lock_guard lock(failure_mutex_);
    failure_ = absl::OkStatus();
    lost_ps_.clear();
    failed_.store(false, std::memory_order_release);
  }
  // Whoever was sent away by a group says so, and none is left twice.
  if (group_ != 0) left_group_ = group_;
  group_ = 0;
  incarnation_ = random_bits() | 1;
  initialised_ = saves_checkpoints_ = true;
  dumps_noticed_ = kNothingNoticed;  // another life of a ps counts from 0
  a_shard_is_on_gpu_ = link_lost_ = exchanging_ = false;
  outstanding_ = 0;
}

absl::Status Client::Impl::rejoin_once(TimePoint deadline, uint64_t come_from) {
  const int64_t come_from_base = base_step_;
  absl::Status joined = join_cluster(deadline);
  if (!joined.ok()) {
    group_ = 0;  // this worker still comes from where it came from
    base_step_ = come_from_base;
    return joined;
  }
  const bool same_servers = group_ == come_from;
  if (!same_servers && began_from_nothing_) {
    spdlog::warn(
        "the parameter servers have restored no checkpoint (if they have one, they say why): the chief's copy of the "
        "parameters is taken, and the optimizer begins anew");
  }
  GRADRAIL_RETURN_IF_ERROR(start());
  go_back(same_servers);
  return absl::OkStatus();
}

/// What this worker has done that its parameters do not show any more is to be done once more.
void Client::Impl::go_back(bool same_servers) {
  if (sums()) return;
  uint64_t position = position_at(global_step());
  if (same_servers) {
    position = left_position_;  // what was not answered may have been applied
  } else if (began_from_nothing_) {
    position = left_position_ - std::min(left_position_, unanswered_);  // the chief's parameters are from before that
    seen_.clear();                                                      // versions begin anew
  }
  base_step_ = static_cast<int64_t>(step_ - position);
  // Versions may have begun anew: what was seen of those to come is no more.
  std::erase_if(seen_, [&](const Seen& seen) { return seen.position > position || seen.version > global_step(); });
  if (seen_.empty()) seen_.push_back({global_step(), position});
}

/// Whether a step's gradients are on their way, and nothing of its answer has come.
bool Client::Impl::unanswered_step() const {
  if (!exchanging_ || kind_ != ps::ArrivalKind::push) return false;
  for (const auto& link : links_) {
    for (const ShardLink::Bucket& bucket : link->buckets) {
      if (!bucket.outstanding) return false;
    }
  }
  return true;
}

void Client::Impl::remember_version() {
  if (sums() || options_.rejoin_timeout == Duration::zero() || position() % seen_every_ != 0) return;
  seen_.push_back({global_step(), position()});
  if (seen_.size() < kMostSeen) return;
  // Every other one: the further back, the less it matters which step exactly.
  for (size_t i = 0; i < kMostSeen / 2; ++i) seen_[i] = seen_[2 * i];
  seen_.resize(kMostSeen / 2);
  seen_every_ *= 2;
}

uint64_t Client::Impl::position_at(uint64_t version) const {
  const auto later = std::upper_bound(seen_.begin(), seen_.end(), version,
                                      [](uint64_t wanted, const Seen& seen) { return wanted < seen.version; });
  if (seen_.empty()) return 0;
  return later == seen_.begin() ? later->position : std::prev(later)->position;  // it was not here before the first
}

}  // namespace gradrail::worker
