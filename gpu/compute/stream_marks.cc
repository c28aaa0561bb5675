#include "gpu/compute/stream_marks.h"

#include <sys/prctl.h>

#include <thread>

namespace gradrail::gpu {
namespace {

// With the query of each turn some hundred microseconds: a copy of 1 MiB over PCIe takes about 50.
constexpr int kBusyTurns = 200;
constexpr auto kSleep = std::chrono::microseconds(20);

/// Linux adds 50 µs to short sleeps, more than the sleep itself. The setting stays until the waiting thread exits.
void sharpen_sleeps() {
  static thread_local const int sharpened = prctl(PR_SET_TIMERSLACK, 1);
  static_cast<void>(sharpened);
}

}  // namespace

cuda::Result StreamMarks::mark(const Stream& stream, CopyTicket ticket) {
  Event event;
  if (spare_.empty()) {
    if (const cuda::Result result = event.make(context_); result != cuda::kSuccess) return result;
  } else {
    event = std::move(spare_.back());
    spare_.pop_back();
  }
  if (const cuda::Result result = stream.record(event); result != cuda::kSuccess) return result;
  // A device without work was not silent: the timeout counts from this mark.
  if (under_way_.empty()) last_answer_ = Clock::now();
  under_way_.push_back({ticket, std::move(event)});
  return cuda::kSuccess;
}

cuda::Result StreamMarks::collect() {
  while (!under_way_.empty()) {
    const cuda::Result result = under_way_.front().event.query();
    if (result == cuda::kNotReady) return result;
    last_answer_ = Clock::now();
    // Events are used again: creating one is a call into the driver, and each bucket needs one.
    spare_.push_back(std::move(under_way_.front().event));
    under_way_.pop_front();
    if (result != cuda::kSuccess) return result;
  }
  return cuda::kSuccess;
}

void WaitInTurns::turn() {
  if (++turns_ < kBusyTurns) {
    std::this_thread::yield();
  } else {
    sharpen_sleeps();
    std::this_thread::sleep_for(kSleep);
  }
}

}  // namespace gradrail::gpu
