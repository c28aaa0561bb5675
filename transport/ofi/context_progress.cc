// The poll loop.
#include <rdma/fi_domain.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/ofi/connection.h"
#include "transport/ofi/context.h"

namespace gradrail::transport::ofi {
namespace {

// Time of a sleep where no descriptor wakes this thread. The loop polls a provider without wait objects (shm) often
// while transfers are under way, and every millisecond (2 % of a core) otherwise.
constexpr Duration kBusyBeat = std::chrono::microseconds(20);
constexpr Duration kIdleBeat = std::chrono::milliseconds(1);
constexpr Duration kBusyTime = std::chrono::milliseconds(2);
constexpr Duration kStuckBeat = std::chrono::microseconds(200);
constexpr Duration kDeadlineBeat = std::chrono::milliseconds(50);
constexpr Duration kSilenceBeat = std::chrono::milliseconds(500);

}  // namespace

size_t OfiContext::poll(absl::Span<Completion> out) {
  ready_.release_delivered([](MessageSlot message) { message.connection->release_message(message.slot); });
  if (ready_.size() < out.size()) {
    room_ = out.size();
    progress();
  }
  const bool was_armed = std::exchange(armed_, false);
  const size_t count = ready_.take(out);
  // The wait ended with work that only the timer may have found: more is likely, so the short interval applies for a
  // while.
  if (was_armed && count > 0 && timer_set_) busy_until_ = Clock::now() + kBusyTime;
  return count;
}

void OfiContext::progress() {
  ++turn_;
  if (side_channels_->due()) poll_side_channels();
  const size_t count = connections_.size();
  for (size_t i = 0; i < count; ++i) {
    assert(connections_.size() == count);  // drop_lost_pending() and accept() run before the loop
    connections_[(turn_ + i) % count]->progress();
  }
}

void OfiContext::poll_side_channels() {
  side_channels_->poll([this](Connection* side_channel) {
    connections_.push_back(std::make_unique<OfiConnection>(*this, side_channel, OfiConnection::Side::accepted,
                                                           Clock::now() + common::kHandshakeTime));
  });
  const TimePoint now = side_channels_->polled_at();
  // lose() erases nothing from connections_; drop_lost_pending() does so after the loop.
  for (const auto& connection : connections_) {
    connection->check_deadline(now);
    connection->check_silence(now);
  }
  drop_lost_pending();
  reap_deferred_closes(now);
}

void OfiContext::reap_deferred_closes(TimePoint now) {
  for (const DeferredClose& deferred : deferred_closes_) deferred.link->drain();
  // Every close has the same delay, so the queue is in the order of expiry.
  while (!deferred_closes_.empty() && deferred_closes_.front().until <= now) {
    deferred_closes_.front().link->shut();
    deferred_closes_.pop_front();
  }
}

void OfiContext::drop_lost_pending() {
  std::erase_if(connections_, [](const auto& each) { return each->lost() && !each->side_channel().introduced(); });
}

// Blocking.

bool OfiContext::arm() {
  // Buffers of delivered messages receive again at the next poll; without it the peer may have no credit to send.
  if (!ready_.empty() || !ready_.delivered().empty()) return false;
  armed_ = true;
  set_timer();
  return side_channels_->arm() && queues_are_dry();
}

bool OfiContext::queues_are_dry() {
  queues_.clear();
  for (const auto& connection : connections_) {
    if (connection->wait_fd() >= 0) queues_.push_back(&connection->queue()->fid);
  }
  // libfabric permits a wait on the descriptors only after fi_trywait() has succeeded: an earlier completion may not
  // signal them.
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
  // The usual case of providers with wait objects costs no system call.
  if (!wanted && !timer_set_) return;
  GRADRAIL_CHECK(!wanted || wait < std::chrono::seconds(1));
  itimerspec when{};
  // Every interval is below 1 s, so the nanoseconds hold it.
  if (wanted) when.it_value.tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
  timerfd_settime(timer_.get(), 0, &when, nullptr);  // the call clears an earlier expiry
  timer_set_ = wanted;
}

}  // namespace gradrail::transport::ofi
