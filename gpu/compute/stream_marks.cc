#include "gpu/compute/stream_marks.h"

#include <sys/prctl.h>

#include <thread>
#include <utility>

namespace gradrail::gpu {
namespace {

// The busy turns take some hundred microseconds with the query of each: a copy of 1 MiB over PCIe takes about 50.
constexpr int kBusyTurns = 200;
constexpr auto kSleep = std::chrono::microseconds(20);
/// A call of the driver takes a lock that other threads of the process need.
constexpr auto kQueryEvery = std::chrono::microseconds(100);

/// Makes short sleeps exact: Linux adds 50 µs, more than the sleep itself. The setting stays until the waiting thread
/// exits.
void sharpen_sleeps() {
  static thread_local const int sharpened = prctl(PR_SET_TIMERSLACK, 1);
  static_cast<void>(sharpened);
}

}  // namespace

StreamMarks::StreamMarks(SharedContext context, Duration answer_timeout)
    : context_(std::move(context)), answer_timeout_(answer_timeout) {
  // The flags are not created at the first mark: the pin could then wait for a kernel that waits for another tower.
  absl::StatusOr<std::unique_ptr<StreamFlags>> flags = StreamFlags::create(context_);
  // A refusal costs speed only.
  if (flags.ok()) flags_ = *std::move(flags);
}

cuda::Result StreamMarks::mark(const Stream& stream, CopyTicket ticket) {
  Mark mark{ticket, Event()};
  stream_ = &stream;
  const cuda::Result result = flags_ != nullptr ? flags_->write(stream, 0, ticket) : record_event(stream, mark.event);
  if (result != cuda::kSuccess) return result;
  // A device without work was not silent: the timeout counts from this mark.
  if (under_way_.empty()) last_answer_ = Clock::now();
  under_way_.push_back(std::move(mark));
  return cuda::kSuccess;
}

cuda::Result StreamMarks::record_event(const Stream& stream, Event& event) {
  if (spare_.empty()) {
    if (const cuda::Result result = event.make(context_); result != cuda::kSuccess) return result;
  } else {
    event = std::move(spare_.back());
    spare_.pop_back();
  }
  return stream.record(event);
}

cuda::Result StreamMarks::collect() {
  if (flags_ != nullptr) return read_flag();
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

cuda::Result StreamMarks::read_flag() {
  if (under_way_.empty()) return cuda::kSuccess;
  const CopyTicket reached = flags_->read(0);
  if (reached < under_way_.front().ticket) return query_driver();
  last_answer_ = Clock::now();
  while (!under_way_.empty() && under_way_.front().ticket <= reached) under_way_.pop_front();
  return under_way_.empty() ? cuda::kSuccess : cuda::kNotReady;
}

/// A device that failed writes no flag: only the driver has its error.
cuda::Result StreamMarks::query_driver() {
  const TimePoint now = Clock::now();
  if (now - queried_ < kQueryEvery) return cuda::kNotReady;
  queried_ = now;
  const cuda::Result result = stream_->query();
  // The stream has ended: the next look reads the flag.
  if (result == cuda::kSuccess || result == cuda::kNotReady) return cuda::kNotReady;
  last_answer_ = Clock::now();
  under_way_.pop_front();
  return result;
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
