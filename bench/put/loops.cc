#include "bench/put/loops.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include "base/status.h"
#include "gradrail/clock.h"

namespace gradrail::bench {
namespace {

// An immediate: the number of the turn or window, and whether it is the last. 32 bits arrive everywhere.
constexpr uint32_t kLast = 1u << 31;
// The notice with this bit answers a window, for puts in both directions.
constexpr uint32_t kAnswer = 1u << 30;
constexpr uint32_t kNumber = kAnswer - 1;

constexpr size_t kFewest = 6;
constexpr size_t kMost = 1 << 18;  // stored figures; their memory is touched before the clock starts
constexpr uint32_t kWindowsUnderWay = 2;
// Each window under way has a separate slot: the next one must not overwrite bytes that are not checked yet.
static_assert(kWindowsUnderWay <= PutEnd::kSlots);
constexpr Duration kQuietDeadline = std::chrono::seconds(60);  // added to the time of the bytes under way
constexpr uint32_t kPollsPerClock = 1 << 12;                   // reading it costs as much as a poll

/// Polls, with a time limit for the next arrival.
class Listener {
 public:
  Listener(PutEnd& end, const PutLoad& load)
      : end_(end),
        // The time is that of both directions, which can share a link.
        deadline_(kQuietDeadline + link_time(2.0 * kWindowsUnderWay * load.window * static_cast<double>(load.bytes))) {}

  absl::StatusOr<absl::Span<const uint32_t>> poll() {
    GRADRAIL_ASSIGN_OR_RETURN(const size_t count, end_.poll(absl::MakeSpan(arrived_)));
    // Only polls without a notice count, so a loaded end never reads the clock here.
    if (count == 0 && ++idle_ % kPollsPerClock == 0) GRADRAIL_RETURN_IF_ERROR(check_timeout());
    if (count > 0) idle_ = 0;
    return absl::Span<const uint32_t>(arrived_.data(), count);
  }

  /// Waits until one immediate arrives.
  absl::StatusOr<uint32_t> await() {
    while (true) {
      GRADRAIL_ASSIGN_OR_RETURN(const absl::Span<const uint32_t> arrived, poll());
      if (arrived.size() > 1) return absl::DataLossError("two notices where one was due");
      if (!arrived.empty()) return arrived.front();
    }
  }

 private:
  absl::Status check_timeout() {
    // The first reading starts the timeout; the polls before it delay it by far less than the deadline.
    if (idle_ == kPollsPerClock) quiet_since_ = Clock::now();
    if (Clock::now() - quiet_since_ < deadline_) return absl::OkStatus();
    return absl::DeadlineExceededError("no notice came");
  }

  PutEnd& end_;
  const Duration deadline_;
  std::array<uint32_t, PutEnd::kBatch> arrived_{};
  uint32_t idle_ = 0;
  TimePoint quiet_since_;
};

double micros_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

void stamp(PutEnd& end, size_t slot, size_t bytes, uint64_t value) {
  // The last bytes: a put that wrote only its beginning has the stamp of an earlier turn.
  std::memcpy(end.source(slot) + bytes - sizeof(value), &value, sizeof(value));
}

bool has_stamp(const PutEnd& end, size_t slot, size_t bytes, uint64_t value) {
  uint64_t got = 0;
  std::memcpy(&got, end.target(slot) + bytes - sizeof(got), sizeof(got));
  return got == value;
}

/// Posts, polling while there is no room; `on_arrival` gets the arrivals meanwhile.
template <typename OnArrival>
absl::Status put(PutEnd& end, Listener& listener, size_t slot, size_t bytes, std::optional<uint32_t> immediate,
                 OnArrival&& on_arrival) {
  while (true) {
    const absl::StatusOr<bool> posted = end.try_put(slot, bytes, immediate);
    if (!posted.ok() || *posted) return posted.status();
    GRADRAIL_ASSIGN_OR_RETURN(const absl::Span<const uint32_t> arrived, listener.poll());
    for (const uint32_t each : arrived) on_arrival(each);
  }
}

/// Posts a window. Only its last put notifies; puts of a connection arrive in order.
template <typename OnArrival>
absl::Status put_window(PutEnd& end, Listener& listener, const PutLoad& load, uint32_t number, bool last,
                        OnArrival&& on_arrival) {
  const size_t slot = number % PutEnd::kSlots;
  stamp(end, slot, load.bytes, number);
  for (uint32_t i = 1; i < load.window; ++i)
    GRADRAIL_RETURN_IF_ERROR(put(end, listener, slot, load.bytes, std::nullopt, on_arrival));
  return put(end, listener, slot, load.bytes, number | (last ? kLast : 0), on_arrival);
}

/// Determines the end of the warm-up and of the whole. The caller passes the time: if a turn takes a few hundred
/// nanoseconds, the reading of the clock is part of them.
class Watch {
 public:
  explicit Watch(const PutLoad& load) : load_(load) {
    // Touches all pages, which clear() keeps: no figure includes a page fault.
    micros_.assign(kMost, 0.0);
    micros_.clear();
  }

  void add(double micros, TimePoint now) {
    now_ = now;
    micros_.push_back(micros);
    if (load_.patience != nullptr && now - reported_ >= kReportTurnsEvery) {
      reported_ = now;
      load_.patience->turn_ended(now);
    }
    if (warm_ || !is_warm()) return;
    warm_ = true;
    micros_.clear();
    start_ = now;
  }
  bool over() const {
    if (!warm_ || micros_.size() < fewest()) return false;
    if (micros_.size() + kWindowsUnderWay >= kMost) return true;
    return load_.iterations > 0 ? micros_.size() >= load_.iterations : passed() >= load_.seconds;
  }
  PutFigure figure(uint64_t wrong) { return {Times::of(micros_), wrong}; }

 private:
  /// Least number of turns. A turn on a slow link can take a minute: a number that is given counts.
  size_t fewest() const { return load_.iterations > 0 ? std::min<uint64_t>(load_.iterations, kFewest) : kFewest; }
  bool is_warm() const {
    if (load_.warmup > 0) return micros_.size() >= load_.warmup;
    return micros_.size() >= kFewest && passed() >= load_.seconds / 10;
  }
  double passed() const { return std::chrono::duration<double>(now_ - start_).count(); }

  const PutLoad& load_;
  std::vector<double> micros_;
  TimePoint start_ = Clock::now();
  TimePoint now_ = start_;
  TimePoint reported_ = start_;
  bool warm_ = false;
};

/// One of two ends that both post windows and answer those of the other. Both run the same loop until each has sent its
/// last window, has its answer, and has answered the last one of the other.
class BothWays {
 public:
  /// `watch` ends the run; null: the other end does.
  BothWays(PutEnd& end, const PutLoad& load, Watch* watch)
      : end_(end), listener_(end, load), load_(load), watch_(watch) {
    marks_.fill(Clock::now());
  }

  absl::StatusOr<uint64_t> run() {
    while (!last_posted_ || answered_ < posted_ || !last_answered_) {
      GRADRAIL_RETURN_IF_ERROR(answer_windows());
      // The leader may still discard arrivals until its first window (PutPair::lead()).
      const bool both_run = watch_ != nullptr || arrived_ > 0;
      if (both_run && !last_posted_ && posted_ - answered_ < kWindowsUnderWay) {
        // The last window of the leader is the signal for the other end.
        last_posted_ = watch_ != nullptr ? watch_->over() : last_arrived_;
        GRADRAIL_RETURN_IF_ERROR(put_window(end_, listener_, load_, posted_, last_posted_, take_));
        ++posted_;
        continue;
      }
      GRADRAIL_ASSIGN_OR_RETURN(const absl::Span<const uint32_t> arrived, listener_.poll());
      for (const uint32_t each : arrived) take(each);
    }
    return wrong_;
  }

 private:
  /// Windows of both ends that are under way at a time.
  static constexpr size_t kMarks = size_t{2} * kWindowsUnderWay;

  void take(uint32_t immediate) {
    const uint32_t number = immediate & kNumber;
    if ((immediate & kAnswer) != 0) {
      wrong_ += number == answered_++ ? 0 : 1;
    } else {
      wrong_ += number == arrived_++ && has_stamp(end_, number % PutEnd::kSlots, load_.bytes, number) ? 0 : 1;
      last_arrived_ |= (immediate & kLast) != 0;
      owed_.push_back(immediate);
    }
    // Only one direction is busy after the last window of this end.
    if (watch_ == nullptr || last_posted_) return;
    // Notices arrive in groups: the time is a share of the time for the number of windows that can be under way.
    const TimePoint now = Clock::now();
    TimePoint& mark = marks_[(answered_ + arrived_) % kMarks];
    watch_->add(micros_between(mark, now) / kMarks, now);
    mark = now;
  }

  absl::Status answer_windows() {
    while (!owed_.empty()) {
      // A copy: put() polls and may append to `owed_`.
      const uint32_t immediate = owed_.front();
      owed_.erase(owed_.begin());
      GRADRAIL_RETURN_IF_ERROR(put(end_, listener_, 0, 0, kAnswer | (immediate & kNumber), take_));
      last_answered_ |= (immediate & kLast) != 0;
    }
    return absl::OkStatus();
  }

  PutEnd& end_;
  Listener listener_;
  const PutLoad& load_;
  Watch* const watch_;
  const std::function<void(uint32_t)> take_ = [this](uint32_t immediate) { take(immediate); };
  std::vector<uint32_t> owed_;  ///< windows of the other end that are not answered yet
  std::array<TimePoint, kMarks> marks_;
  uint32_t posted_ = 0;    ///< windows of this end
  uint32_t answered_ = 0;  ///< … with an answer
  uint32_t arrived_ = 0;   ///< windows of the other end
  uint64_t wrong_ = 0;
  bool last_posted_ = false;
  bool last_arrived_ = false;   ///< the last window of the other end
  bool last_answered_ = false;  ///< … and its answer has been posted
};

}  // namespace

absl::StatusOr<PutFigure> lead_latency(PutEnd& end, const PutLoad& load) {
  Listener listener(end, load);
  Watch watch(load);
  uint64_t wrong = 0;
  bool last = false;
  TimePoint start = Clock::now();
  for (uint32_t turn = 1; !last; ++turn) {
    last = watch.over();
    stamp(end, 0, load.bytes, turn);
    GRADRAIL_RETURN_IF_ERROR(put(end, listener, 0, load.bytes, turn | (last ? kLast : 0), [&](uint32_t) { ++wrong; }));
    GRADRAIL_ASSIGN_OR_RETURN(const uint32_t answer, listener.await());
    const TimePoint now = Clock::now();
    // A round trip has two puts. One reading of the clock ends this turn and starts the next.
    watch.add(micros_between(start, now) / 2, now);
    start = now;
    // The answer has turn + 1 as stamp, so an old value of this end's own cannot pass for it.
    wrong += (answer & kNumber) == turn && has_stamp(end, 0, load.bytes, turn + 1) ? 0 : 1;
  }
  return watch.figure(wrong);
}

absl::StatusOr<uint64_t> answer_latency(PutEnd& end, const PutLoad& load) {
  Listener listener(end, load);
  uint64_t wrong = 0;
  while (true) {
    GRADRAIL_ASSIGN_OR_RETURN(const uint32_t asked, listener.await());
    const uint32_t turn = asked & kNumber;
    wrong += has_stamp(end, 0, load.bytes, turn) ? 0 : 1;
    stamp(end, 0, load.bytes, turn + 1);
    GRADRAIL_RETURN_IF_ERROR(put(end, listener, 0, load.bytes, asked, [&](uint32_t) { ++wrong; }));
    if ((asked & kLast) != 0) return wrong;
  }
}

absl::StatusOr<PutFigure> lead_bandwidth(PutEnd& end, const PutLoad& load) {
  Listener listener(end, load);
  Watch watch(load);
  uint64_t wrong = 0;
  uint32_t posted = 0;
  uint32_t answered = 0;
  bool last = false;
  // Answers may arrive in pairs: a window's time is half of the time since the one before the last.
  std::array<TimePoint, kWindowsUnderWay> marks;
  marks.fill(Clock::now());
  const auto on_answer = [&](uint32_t immediate) {
    const TimePoint now = Clock::now();
    TimePoint& mark = marks[answered % kWindowsUnderWay];
    watch.add(micros_between(mark, now) / kWindowsUnderWay, now);
    mark = now;
    wrong += (immediate & kNumber) == answered++ ? 0 : 1;
  };
  while (!last || answered < posted) {
    // The windows under way are bounded: the receiver's slots are, too.
    if (last || posted - answered == kWindowsUnderWay) {
      GRADRAIL_ASSIGN_OR_RETURN(const absl::Span<const uint32_t> arrived, listener.poll());
      for (const uint32_t each : arrived) on_answer(each);
      continue;
    }
    last = watch.over();
    GRADRAIL_RETURN_IF_ERROR(put_window(end, listener, load, posted, last, on_answer));
    ++posted;
  }
  return watch.figure(wrong);
}

absl::StatusOr<uint64_t> answer_bandwidth(PutEnd& end, const PutLoad& load) {
  Listener listener(end, load);
  uint64_t wrong = 0;
  std::vector<uint32_t> owed;
  const auto check = [&](uint32_t immediate) {
    const uint32_t number = immediate & kNumber;
    wrong += has_stamp(end, number % PutEnd::kSlots, load.bytes, number) ? 0 : 1;
    owed.push_back(immediate);
  };
  while (true) {
    GRADRAIL_ASSIGN_OR_RETURN(const absl::Span<const uint32_t> arrived, listener.poll());
    for (const uint32_t each : arrived) check(each);
    while (!owed.empty()) {
      // The value is a copy: put() polls and may append to `owed`.
      const uint32_t immediate = owed.front();
      owed.erase(owed.begin());
      // No bytes: only the notice answers a window.
      GRADRAIL_RETURN_IF_ERROR(put(end, listener, 0, 0, immediate, check));
      if ((immediate & kLast) != 0) return wrong;
    }
  }
}

absl::StatusOr<PutFigure> lead_both_ways(PutEnd& end, const PutLoad& load) {
  Watch watch(load);
  GRADRAIL_ASSIGN_OR_RETURN(const uint64_t wrong, BothWays(end, load, &watch).run());
  return watch.figure(wrong);
}

absl::StatusOr<uint64_t> answer_both_ways(PutEnd& end, const PutLoad& load) {
  return BothWays(end, load, nullptr).run();
}

}  // namespace gradrail::bench
