// The poll loop.
#include <rdma/fi_domain.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "transport/ofi/connection.h"
#include "transport/ofi/context.h"

namespace gradrail::transport::ofi {
namespace {

/// A look at the side channels is a system call; reading the clock costs about as much as a poll.
constexpr uint32_t kPollsPerClock = 64;
constexpr Duration kTimePerLook = std::chrono::milliseconds(1);
/// The same as tcp's timeout for pending connections.
constexpr Duration kHelloTimeout = std::chrono::seconds(5);

// How long to sleep where no descriptor wakes us. A provider without wait objects (shm) is looked at often while
// something is going on and every millisecond (2 % of a core) when nothing is.
constexpr Duration kBusyBeat = std::chrono::microseconds(20);
constexpr Duration kIdleBeat = std::chrono::milliseconds(1);
constexpr Duration kBusyTime = std::chrono::milliseconds(2);
constexpr Duration kStuckBeat = std::chrono::microseconds(200);
constexpr Duration kDeadlineBeat = std::chrono::milliseconds(50);
constexpr Duration kSilenceBeat = std::chrono::milliseconds(500);

}  // namespace

size_t OfiContext::poll(absl::Span<Completion> out) {
  release_messages();
  if (ready_.size() < out.size()) {
    room_ = out.size();
    progress();
  }
  const bool was_armed = std::exchange(armed_, false);
  const size_t count = take(out);
  if (was_armed && count > 0 && timer_set_) busy_until_ = Clock::now() + kBusyTime;
  return count;
}

void OfiContext::progress() {
  ++turn_;
  if (side_channel_due()) poll_side_channels();
  const size_t count = connections_.size();
  for (size_t i = 0; i < count; ++i) connections_[(turn_ + i) % count]->progress();
}

bool OfiContext::side_channel_due() {
  if (armed_) return true;  // we may have been woken by one
  if (turn_ % kPollsPerClock != 0) return false;
  const TimePoint now = Clock::now();
  if (now < next_look_) return false;
  next_look_ = now + kTimePerLook;
  return true;
}

void OfiContext::poll_side_channels() {
  // One at a time: what is heard may end the side channel, and with it whatever a longer batch held of it.
  std::array<Completion, 1> one;
  while (ready_.size() < room_ && side_channel_->poll(absl::MakeSpan(one)) > 0) handle_side_channel(one[0]);
  const TimePoint now = Clock::now();
  for (const auto& connection : connections_) {
    connection->check_deadline(now);
    connection->check_silence(now);
  }
  drop_lost_pending();
  reap_deferred_closes(now);
}

void OfiContext::handle_side_channel(const Completion& completion) {
  if (completion.kind == Completion::Kind::connected) {
    connections_.push_back(
        std::make_unique<OfiConnection>(*this, completion.connection, /*accepted=*/true, Clock::now() + kHelloTimeout));
    completion.connection->set_user_data(reinterpret_cast<uint64_t>(connections_.back().get()));
    return;
  }
  auto* const connection = reinterpret_cast<OfiConnection*>(completion.connection->user_data());
  switch (completion.kind) {
    case Completion::Kind::message:
      return connection->hear(completion.message);
    case Completion::Kind::peer_lost:
      return connection->side_channel_lost(completion.cause);
    default:
      return connection->lose(absl::DataLossError("ofi: the peer speaks tcp: use the same transport on both sides"));
  }
}

void OfiContext::reap_deferred_closes(TimePoint now) {
  for (const DeferredClose& deferred : deferred_closes_) deferred.link->drain();
  while (!deferred_closes_.empty() && deferred_closes_.front().until <= now) {
    deferred_closes_.front().link->shut();
    deferred_closes_.pop_front();
  }
}

void OfiContext::drop_lost_pending() {
  std::erase_if(connections_, [](const auto& each) { return each->lost() && each->never_reported(); });
}

size_t OfiContext::take(absl::Span<Completion> out) {
  size_t count = 0;
  for (; count < out.size() && !ready_.empty(); ++count) {
    Ready& next = ready_.front();
    if (next.slot != kNoSlot) {
      delivered_.push_back({static_cast<OfiConnection*>(next.completion.connection), next.slot});
    }
    out[count] = std::move(next.completion);
    ready_.pop_front();
  }
  return count;
}

void OfiContext::release_messages() {
  for (const Delivered& each : delivered_) each.connection->release_message(each.slot);
  delivered_.clear();
}

// Blocking.

bool OfiContext::arm() {
  if (!ready_.empty() || !delivered_.empty()) return false;
  armed_ = true;
  set_timer();
  return side_channel_->arm() && queues_are_dry();
}

bool OfiContext::queues_are_dry() {
  queues_.clear();
  for (const auto& connection : connections_) {
    if (connection->wait_fd() >= 0) queues_.push_back(&connection->queue()->fid);
  }
  return queues_.empty() || fi_trywait(fabric_.get(), queues_.data(), static_cast<int>(queues_.size())) == 0;
}

Duration OfiContext::time_to_look() const {
  Duration shortest = Duration::max();
  if (!deferred_closes_.empty()) shortest = kDeadlineBeat;
  for (const auto& connection : connections_) {
    if (connection->waits_for_hello()) shortest = std::min(shortest, kDeadlineBeat);
    if (connection->awaits_acknowledgement()) shortest = std::min(shortest, kSilenceBeat);
    if (connection->stuck()) shortest = std::min(shortest, kStuckBeat);
    const bool blind = connection->queue() != nullptr && connection->wait_fd() < 0;
    if (blind) shortest = std::min(shortest, Clock::now() < busy_until_ ? kBusyBeat : kIdleBeat);
  }
  return shortest;
}

void OfiContext::set_timer() {
  const Duration wait = time_to_look();
  const bool wanted = wait != Duration::max();
  if (!wanted && !timer_set_) return;
  itimerspec when{};
  if (wanted) when.it_value.tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
  timerfd_settime(timer_.get(), 0, &when, nullptr);  // and forgets an earlier expiry
  timer_set_ = wanted;
}

}  // namespace gradrail::transport::ofi
