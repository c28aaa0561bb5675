// After a move: better paths are tried beside the one in use, and taken back when they live again.
#include <algorithm>

#include "base/status.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"
#include "worker/client_impl.h"

namespace gradrail::worker {
namespace {

using Phase = ShardPath::Phase;

/// A trial may not hold up the exchange it runs beside: connecting is the part that blocks.
constexpr auto kTrialConnect = std::chrono::milliseconds(300);
constexpr auto kTrialDeadline = std::chrono::seconds(3);
/// Both ends just saw the trial's bytes arrive: the last word takes one round trip.
constexpr auto kSwitchDeadline = std::chrono::seconds(2);

}  // namespace

void Client::Impl::come_back() {
  const TimePoint now = Clock::now();
  next_come_back_ = TimePoint::max();
  for (const auto& link : links_) {
    if (link->trial != nullptr && link->trial->phase() == Phase::ready) {
      link->trial->activate();
      const absl::Status switched = establish(*link->trial, Phase::active, now + kSwitchDeadline);
      if (switched.ok()) {
        spdlog::warn("shard {} at {}: back on {}", link->shard_index, controls_[link->ps_index]->address(),
                     link->trial->describe());
        ++stats_.returns;
        link->ways_refused = std::move(link->trial_refused);
        use(*link, std::move(link->trial), link->trial_candidate);
      } else {
        end_trial(*link, std::string(message_of(switched)));
      }
    } else if (link->trial == nullptr && now >= link->next_trial && !(gpu_ != nullptr && tries_a_path())) {
      start_trial(*link);
    }
    // A trial under way is looked at before each exchange.
    next_come_back_ = std::min(next_come_back_, link->trial != nullptr ? now : link->next_trial);
  }
}

/// There is space for one pattern in GPU memory.
bool Client::Impl::tries_a_path() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& link) { return link->trial != nullptr; });
}

void Client::Impl::drop_trials() {
  for (const auto& link : links_) {
    if (link->trial == nullptr) continue;
    link->trial.reset();
    link->next_trial = Clock::now() + options_.failback;
  }
}

void Client::Impl::start_trial(ShardLink& link) {
  for (size_t tried = 0; tried < link.candidate; ++tried) {
    // From the one after the last that was tried: one that never works again must not hide the next.
    const size_t i = link.trial_candidate = (link.trial_candidate + 1) % link.candidate;
    if (link.candidates[i].never) continue;
    absl::StatusOr<std::unique_ptr<ShardPath>> path = open_trial(link, i);
    if (path.ok()) {
      link.trial = *std::move(path);
      link.trial_deadline = Clock::now() + kTrialDeadline;
      link.trial->advance();
      return;
    }
    link.candidates[i].refused = message_of(path.status());
  }
  close_unused_contexts();
  link.next_trial = Clock::now() + options_.failback;
}

void Client::Impl::end_trial(ShardLink& link, const std::string& why) {
  spdlog::info("shard {} at {}: {} does not work yet: {}", link.shard_index, controls_[link.ps_index]->address(),
               link.candidates[link.trial_candidate].name, why);
  link.candidates[link.trial_candidate].refused = why;
  if (link.trial != nullptr && link.trial->slots_on_gpu()) {
    link.host_slots = true;
  } else if (link.trial != nullptr && link.trial->was_welcome() && link.trial_way != GpuWay::staged) {
    link.failed_trials.insert({link.trial_candidate, link.trial_way});
  }
  link.trial.reset();
  close_unused_contexts();
  link.next_trial = Clock::now() + options_.failback;
}

/// One way in each trial: what was not good in the last trial of this candidate is passed over.
absl::StatusOr<std::unique_ptr<ShardPath>> Client::Impl::open_trial(ShardLink& link, size_t candidate) {
  const std::string& name = link.candidates[candidate].name;
  link.trial_refused.clear();
  for (const GpuWay way : ways(link)) {
    const absl::StatusOr<OpenContext*> context = open_context(name);
    if (!context.ok()) return context.status();
    absl::Status usable = reach_gpu(**context, way);
    if (link.failed_trials.contains({candidate, way})) usable.Update(absl::UnavailableError("its check failed"));
    if (!usable.ok()) {
      link.trial_refused[way] = message_of(usable);
      continue;
    }
    link.trial_way = way;
    return open_path(link, link.candidates[candidate], way, Clock::now() + kTrialConnect);
  }
  link.failed_trials.clear();  // from the best way on, next time
  return absl::FailedPreconditionError("no way to and from GPU memory was good there the last time");
}

bool Client::Impl::advance_trials() {
  if (next_come_back_ == TimePoint::max()) return false;
  bool in_need = false;
  for (const auto& link : links_) {
    if (link->trial == nullptr) continue;
    in_need = link->trial->advance() || in_need;
    if (link->trial->phase() == Phase::ready) {
      const absl::Status may = allowed(*link->trial);
      if (link->trial->way() != link->trial_way) {
        end_trial(*link, link->trial->device_refused());
      } else if (!may.ok()) {
        end_trial(*link, std::string(message_of(may)));
      }
    } else if (link->trial->phase() == Phase::failed) {
      end_trial(*link, link->trial->why());
    } else if (Clock::now() >= link->trial_deadline) {
      end_trial(*link, "a transfer to the shard and back did not arrive in time");
    }
  }
  return in_need;
}

}  // namespace gradrail::worker
