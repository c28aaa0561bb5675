// A ps was lost that has a standby: this worker goes on there, as the same member, from the very step it is at.
#include <algorithm>
#include <thread>

#include "base/status.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"
#include "transport/registry.h"
#include "worker/client_impl.h"

namespace gradrail::worker {
namespace {

/// A standby is up, or it is none.
constexpr auto kDescribeDeadline = std::chrono::seconds(2);
/// It refuses while its primary seems to live: one that has stopped is known to be gone after the ps' silence limit,
/// and this much more.
constexpr auto kTakeOverDeadline = std::chrono::seconds(15);
constexpr auto kBetweenAttempts = std::chrono::milliseconds(50);
/// A heartbeat notices later than a call what has become of a ps.
constexpr auto kNoticedDeadline = std::chrono::seconds(10);
constexpr auto kBetweenNotices = std::chrono::seconds(10);
constexpr auto kConnectDeadline = std::chrono::seconds(20);

/// Each of many short attempts would begin its notices anew.
Notice seldom(const Notice& notice) {
  auto next = std::make_shared<TimePoint>();  // shared: a Notice is copied
  return [notice, next](const std::string& text) {
    if (Clock::now() < *next) return;
    *next = Clock::now() + kBetweenNotices;
    notice(text);
  };
}

}  // namespace

void Client::Impl::lose(uint32_t ps_index, absl::Status cause) {
  if (!has_standby() || !absl::IsUnavailable(cause)) return fail(std::move(cause));
  {
    std::lock_guard lock(failure_mutex_);
    lost_ps_.emplace(ps_index, cause);
    if (going_to_standbys_) return;  // this one is next
    if (failure_.ok()) failure_ = std::move(cause);
    failed_.store(true, std::memory_order_release);
  }
  wait_set_.wake();
}

std::unique_ptr<ControlLink> Client::Impl::open_control(uint32_t ps_index, const std::string& address,
                                                        const Notice& notice) {
  Whereabouts where;
  if (options_.ps_address) where = [this, ps_index] { return address_now(ps_index); };
  return std::make_unique<ControlLink>(ps_index, address, credentials_, options_.security.secret, notice, options_.stop,
                                       where);
}

/// Between two addresses the one that serves; they change places when that is the other.
absl::StatusOr<ps::proto::DescribeReply> Client::Impl::describe(uint32_t ps_index, TimePoint deadline) {
  std::string& address = options_.cluster.ps[ps_index];
  const Notice notice = has_standby() ? seldom(options_.notice) : options_.notice;
  while (true) {
    controls_[ps_index] = open_control(ps_index, address, notice);
    const TimePoint soon = has_standby() ? std::min(deadline, Clock::now() + kDescribeDeadline) : deadline;
    absl::StatusOr<ps::proto::DescribeReply> reply = controls_[ps_index]->describe(soon);
    if (reply.ok() && reply->paired() != has_standby()) {
      return absl::FailedPreconditionError(fmt::format(
          "{} was started {} --replicas 1, and this worker {}: give it to all tasks of a run, or to none",
          controls_[ps_index]->name(), has_standby() ? "without" : "with", has_standby() ? "with" : "without"));
    }
    const bool serves = reply.ok() && !reply->standby();
    if (serves || (!reply.ok() && (!has_standby() || !absl::IsDeadlineExceeded(reply.status())))) return reply;
    if (Clock::now() >= deadline) {
      return reply.ok() ? absl::DeadlineExceededError(fmt::format(
                              "{} is a standby, and the ps task that it stands by for did not come up in time",
                              controls_[ps_index]->name()))
                        : reply;
    }
    if (reply.ok()) std::this_thread::sleep_for(kBetweenAttempts);
    if (has_standby()) std::swap(address, options_.standbys[ps_index]);
  }
}

/// Whether a call that failed can be made once more.
bool Client::Impl::outlives(const absl::Status& failed_call) {
  if (!has_standby() || !absl::IsUnavailable(failed_call)) return false;
  const TimePoint deadline = Clock::now() + kNoticedDeadline;
  while (!failed_.load(std::memory_order_acquire) && Clock::now() < deadline) {
    std::this_thread::sleep_for(kBetweenAttempts);
  }
  return go_to_standbys();
}

/// True when all that had failed are ps tasks whose standbys go on now.
bool Client::Impl::go_to_standbys() {
  if (!has_standby() || !failed_.load(std::memory_order_acquire)) return false;
  if (!absl::IsUnavailable(failure())) return false;
  while (true) {
    std::map<uint32_t, absl::Status> lost;
    {
      std::lock_guard lock(failure_mutex_);
      lost.swap(lost_ps_);
      // Others may be lost while we are at it: they are found here again.
      going_to_standbys_ = !lost.empty();
      if (!lost.empty()) failure_ = absl::OkStatus();
      failed_.store(lost.empty() && !failure_.ok(), std::memory_order_release);
    }
    if (lost.empty()) return failure().ok();
    for (const auto& [ps_index, cause] : lost) {
      const absl::Status gone = go_to_standby(ps_index, cause);
      if (gone.ok()) continue;
      spdlog::warn("its standby did not take over: {}", std::string(message_of(gone)));
      {
        std::lock_guard lock(failure_mutex_);
        going_to_standbys_ = false;
      }
      fail(asked_to_stop() ? absl::CancelledError(fmt::format("stopped while {}", message_of(cause))) : cause);
      return false;
    }
  }
}

absl::StatusOr<ps::proto::JoinReply> Client::Impl::ask_to_take_over(uint32_t ps_index, ControlLink& standby,
                                                                    Duration silence_limit) {
  const auto first = std::find_if(links_.begin(), links_.end(), [&](const auto& l) { return l->ps_index == ps_index; });
  ps::proto::JoinRequest request = join_request((*first)->shard_index);
  ps::proto::JoinRequest::TakeOver& take_over = *request.mutable_take_over();
  for (const auto& link : links_) {
    if (link->ps_index != ps_index) continue;
    for (const ShardLink::Bucket& bucket : link->buckets) take_over.add_versions(bucket.version);
  }
  for (const auto& [name, generation] : barrier_generation_) {
    ps::proto::JoinRequest::TakeOver::Barrier& barrier = *take_over.add_barriers();
    barrier.set_name(name);
    barrier.set_generation(generation);
  }
  take_over.set_steps_are_done(steps_are_done_);
  const TimePoint deadline = Clock::now() + silence_limit + kTakeOverDeadline;
  while (true) {
    absl::StatusOr<ps::proto::JoinReply> reply = standby.join(request, deadline);
    if (reply.ok() || !absl::IsUnavailable(reply.status()) || asked_to_stop() || Clock::now() >= deadline) return reply;
    std::this_thread::sleep_for(kBetweenAttempts);
  }
}

absl::Status Client::Impl::go_to_standby(uint32_t ps_index, const absl::Status& cause) {
  std::string& address = options_.cluster.ps[ps_index];
  std::string& other = options_.standbys[ps_index];
  auto control = open_control(ps_index, other, options_.notice);
  absl::StatusOr<ps::proto::DescribeReply> described = absl::UnavailableError("");
  // One that is busy or cut off for a moment has what nobody else has any more, unless its primary serves again.
  for (const TimePoint deadline = Clock::now() + kTakeOverDeadline;;) {
    described = control->describe(Clock::now() + kDescribeDeadline);
    if (described.ok() || !absl::IsDeadlineExceeded(described.status()) || Clock::now() >= deadline) break;
    const auto primary = open_control(ps_index, address, [](const std::string&) {})->describe(Clock::now());
    if (primary.ok() && !primary->standby()) break;
  }
  if (!described.ok()) return described.status();
  const absl::StatusOr<ps::proto::JoinReply> joined =
      ask_to_take_over(ps_index, *control, std::chrono::milliseconds(described->silence_limit_ms()));
  if (!joined.ok()) return joined.status();
  save_.emplace(controls_);  // waits for its thread, which uses the link that goes; what it watched is given up
  controls_[ps_index] = std::move(control);
  tokens_[ps_index] = joined->token();
  std::swap(address, other);
  if (ps_index == 0) dumps_noticed_ = kNothingNoticed;  // another process counts from 0
  watch(ps_index);
  int shard = 0;
  for (const auto& link : links_) {
    if (link->ps_index != ps_index) continue;
    if (shard >= joined->shards_size()) return absl::FailedPreconditionError("the standby has fewer shards");
    GRADRAIL_RETURN_IF_ERROR(connect_to_standby(*link, *described, joined->shards(shard++)));
  }
  ++stats_.takeovers;
  options_.notice(fmt::format("{}; its standby ({}) has taken over at step {}, no step lost", message_of(cause),
                              address, joined->global_step()));
  return absl::OkStatus();
}

absl::Status Client::Impl::connect_to_standby(ShardLink& link, const ps::proto::DescribeReply& described,
                                              const ps::proto::JoinReply::Shard& shard) {
  link.path.reset();
  link.trial.reset();
  link.trial_candidate = SIZE_MAX;
  std::erase_if(backlog_, [&](const Unposted& unposted) { return unposted.link == &link; });
  std::erase_if(staged_, [&](const Staged& staged) { return staged.link == &link; });
  close_unused_contexts();
  const std::string host_id = transport::host_id();
  std::vector<transport::PeerTransport> theirs;
  for (const auto& transport : described.transports()) theirs.push_back({transport.name(), transport.refused()});
  link.ipc_refused = why_not_ipc(described, host_id == described.host_id(), controls_[link.ps_index]->name());
  link.candidates = transport::weigh(options_.transports, theirs, host_id, described.host_id());
  link.endpoints = {shard.endpoints().begin(), shard.endpoints().end()};
  if (link.buckets.empty()) return absl::OkStatus();
  GRADRAIL_RETURN_IF_ERROR(connect(link, Clock::now() + kConnectDeadline));
  replay(link);
  return absl::OkStatus();
}

}  // namespace gradrail::worker
