#include "transport/wait_set.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/resource_limits.h"

namespace gradrail::transport {
namespace {

/// Spins that are always in vain: one of 65 waits.
constexpr uint32_t kMostMisses = 6;
/// Time of spinning before a yield. A system call below it would be the longest part of an exchange.
constexpr auto kYieldAfter = std::chrono::microseconds(5);
/// The clock costs as much as a poll.
constexpr int kPollsPerLook = 16;

}  // namespace

WaitSet::WaitSet(WaitPolicy policy) : policy_(policy), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_fd_ < 0) wake_error_ = errno;
  fds_.push_back({.fd = wake_fd_, .events = POLLIN, .revents = 0});
}

absl::Status WaitSet::check() const { return wake_fd_ < 0 ? kernel_refusal("eventfd", wake_error_) : absl::OkStatus(); }

void WaitSet::add(Context* context) {
  GRADRAIL_CHECK(context != nullptr && std::find(contexts_.begin(), contexts_.end(), context) == contexts_.end());
  contexts_.push_back(context);
  fds_.push_back({.fd = context->wait_fd(), .events = POLLIN, .revents = 0});
}

void WaitSet::remove(Context* context) {
  const auto found = std::find(contexts_.begin(), contexts_.end(), context);
  GRADRAIL_CHECK(found != contexts_.end());
  // fds_[0] belongs to wake().
  fds_.erase(fds_.begin() + 1 + (found - contexts_.begin()));
  contexts_.erase(found);
  // source_index() must stay inside contexts_.
  next_ = 0;
}

WaitSet::~WaitSet() {
  if (wake_fd_ >= 0) close(wake_fd_);
}

size_t WaitSet::poll(absl::Span<Completion> out) {
  for (size_t i = 0; i < contexts_.size(); ++i) {
    next_ = next_ + 1 < contexts_.size() ? next_ + 1 : 0;
    if (const size_t count = contexts_[next_]->poll(out); count > 0) return count;
  }
  return 0;
}

size_t WaitSet::poll_briefly(absl::Span<Completion> out) {
  const bool spins = unspinning_ == 0 && policy_.spin > Duration::zero();
  return spins ? poll_often(out) : poll(out);
}

/// The polls between two looks at the clock. After the first one, it is most often the last source that has more.
size_t WaitSet::poll_often(absl::Span<Completion> out) {
  size_t count = poll(out);
  for (int i = 1; i < kPollsPerLook && count == 0 && !contexts_.empty(); ++i) count = contexts_[next_]->poll(out);
  return count;
}

size_t WaitSet::wait(absl::Span<Completion> out, TimePoint deadline) {
  // This poll finds work under load, and the wait costs no look at the clock.
  if (const size_t count = poll(out); count > 0) return count;
  if (unspinning_ > 0) {
    --unspinning_;
  } else if (policy_.spin > Duration::zero()) {
    const std::optional<size_t> count = spin(out, deadline);
    if (count.value_or(0) > 0) misses_ /= 2;
    if (count.has_value()) return *count;
    misses_ = std::min(misses_ + 1, kMostMisses);
    if (policy_.adapts) unspinning_ = 1u << misses_;
  }
  while (true) {
    // A context that refuses has work: nothing blocks, and the poll below finds it.
    if (arm_all()) {
      if (block(deadline)) return poll(out);
    }
    if (const size_t count = poll(out); count > 0) return count;
    if (Clock::now() >= deadline) return 0;
  }
}

std::optional<size_t> WaitSet::spin(absl::Span<Completion> out, TimePoint deadline) {
  const TimePoint start = Clock::now();
  const TimePoint until = std::min(deadline, start + policy_.spin);
  for (TimePoint now = start; now < until; now = Clock::now()) {
    if (const size_t count = poll_often(out); count > 0) return count;
    if (woken_.exchange(false, std::memory_order_acquire)) return poll(out);
    if (policy_.adapts && now - start > kYieldAfter) sched_yield();
  }
  return std::nullopt;
}

bool WaitSet::arm_all() {
  return std::all_of(contexts_.begin(), contexts_.end(), [](Context* context) { return context->arm(); });
}

bool WaitSet::block(TimePoint deadline) {
  const auto left = std::max(Duration::zero(), deadline - Clock::now());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  // A deadline that has passed is 0 here: the descriptors are checked immediately.
  const timespec timeout{.tv_sec = seconds.count(),
                         .tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(left - seconds).count()};
  if (ppoll(fds_.data(), fds_.size(), &timeout, nullptr) <= 0) return false;  // EINTR too: wait() looks again
  uint64_t count = 0;
  return fds_[0].revents != 0 && read(wake_fd_, &count, sizeof(count)) == sizeof(count);
}

// Both the spinning and the blocking wait detect each wake-up; the second return is one empty turn. Both could miss a
// wake-up in the reverse order.
void WaitSet::wake() {
  woken_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));  // full counter: already awake
}

}  // namespace gradrail::transport
