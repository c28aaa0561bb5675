#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "bench/put/end.h"
#include "bench/put/loops.h"

namespace gradrail::bench {
namespace {

constexpr size_t kPutBytes = 64;

/// One direction between two ends: each window needs `window_time` of the wire.
struct PutWire {
  struct Arrival {
    uint32_t immediate = 0;
    TimePoint due;
  };
  Duration window_time{};
  Mutex mutex;
  std::deque<Arrival> arrivals;
  TimePoint busy_until;
  std::vector<std::byte> target = std::vector<std::byte>(PutEnd::kSlots * kPutBytes);
  uint64_t windows = 0;
  bool loses_bytes = false;
  std::latch polled = std::latch(1);  ///< the first time
};

class WiredEnd final : public PutEnd {
 public:
  WiredEnd(PutWire& out, PutWire& in) : out_(out), in_(in) {}

  std::string path() const override { return "wire"; }
  std::byte* source(size_t slot) override { return source_.data() + slot * kPutBytes; }
  const std::byte* target(size_t slot) const override { return in_.target.data() + slot * kPutBytes; }

  absl::StatusOr<bool> try_put(size_t slot, size_t bytes, std::optional<uint32_t> immediate) override {
    const MutexLock lock(out_.mutex);
    if (!out_.loses_bytes) std::memcpy(out_.target.data() + slot * kPutBytes, source(slot), bytes);
    if (!immediate) return true;
    TimePoint due = Clock::now();
    if (bytes > 0) {
      ++out_.windows;
      due = out_.busy_until = std::max(out_.busy_until, due) + out_.window_time;
    }
    // In order: an answer waits for the window before it.
    out_.arrivals.push_back({*immediate, std::max(due, out_.arrivals.empty() ? due : out_.arrivals.back().due)});
    return true;
  }

  absl::StatusOr<size_t> poll(absl::Span<uint32_t> arrived) override {
    if (!std::exchange(has_polled_, true)) in_.polled.count_down();
    const MutexLock lock(in_.mutex);
    size_t count = 0;
    while (count < arrived.size() && !in_.arrivals.empty() && in_.arrivals.front().due <= Clock::now()) {
      arrived[count++] = in_.arrivals.front().immediate;
      in_.arrivals.pop_front();
    }
    return count;
  }

 private:
  PutWire& out_;
  PutWire& in_;
  bool has_polled_ = false;
  std::vector<std::byte> source_ = std::vector<std::byte>(kSlots * kPutBytes);
};

struct WiredRun {
  PutFigure figure;
  uint64_t wrong_at_other = 0;
  uint64_t windows_there = 0;
  uint64_t windows_back = 0;
  double us = 0;  ///< of the whole loop, the warm-up included
};

using LeadLoop = absl::StatusOr<PutFigure> (*)(PutEnd&, const PutLoad&);
using AnswerLoop = absl::StatusOr<uint64_t> (*)(PutEnd&, const PutLoad&);

WiredRun run_over_wires(LeadLoop lead, AnswerLoop answer, Duration window_time, bool loses_bytes = false) {
  const PutLoad load{.bytes = kPutBytes, .window = 4, .iterations = 40, .warmup = 4};
  PutWire there, back;
  there.window_time = back.window_time = window_time;
  back.loses_bytes = loses_bytes;
  WiredEnd leader(there, back), other(back, there);
  WiredRun run;
  std::thread thread([&] {
    const absl::StatusOr<uint64_t> wrong = answer(other, load);
    EXPECT_TRUE(wrong.ok()) << wrong.status();
    run.wrong_at_other = wrong.value_or(0);
  });
  // As PutPair::lead() until the other end is in its loop: what arrives is thrown away.
  there.polled.wait();
  std::array<uint32_t, PutEnd::kBatch> none{};
  EXPECT_TRUE(leader.poll(absl::MakeSpan(none)).ok());
  const TimePoint start = Clock::now();
  const absl::StatusOr<PutFigure> figure = lead(leader, load);
  run.us = seconds_since(start) * 1e6;
  thread.join();
  EXPECT_TRUE(figure.ok()) << figure.status();
  if (figure.ok()) run.figure = *figure;
  EXPECT_TRUE(there.arrivals.empty() && back.arrivals.empty()) << "arrivals that no loop has taken";
  run.windows_there = there.windows;
  run.windows_back = back.windows;
  return run;
}

TEST(PutsBothWays, BothEndsWriteAndAnswerAllWindows) {
  const WiredRun run = run_over_wires(lead_both_ways, answer_both_ways, {});
  EXPECT_EQ(run.figure.wrong, 0);
  EXPECT_EQ(run.wrong_at_other, 0);
  EXPECT_GE(run.figure.times.count, 40);
  // Each end has two windows under way, and none of both starts another one without an answer.
  EXPECT_GT(run.windows_there, 10);
  EXPECT_GT(run.windows_back, 10);
  const WiredRun one_way = run_over_wires(lead_bandwidth, answer_bandwidth, {});
  EXPECT_EQ(one_way.windows_back, 0);
}

TEST(PutsBothWays, TheFigureIsTheSumOfBothDirections) {
  constexpr Duration kWindowTime = std::chrono::milliseconds(4);
  const WiredRun one_way = run_over_wires(lead_bandwidth, answer_bandwidth, kWindowTime);
  const WiredRun both_ways = run_over_wires(lead_both_ways, answer_both_ways, kWindowTime);
  EXPECT_GE(one_way.figure.times.mean_us, 3900);
  EXPECT_GE(both_ways.figure.times.mean_us, 1900);
  // The windows of both directions share the time of the loop.
  const double windows = static_cast<double>(both_ways.windows_there + both_ways.windows_back);
  EXPECT_LE(both_ways.figure.times.mean_us * windows * 40 / 44, both_ways.us);
}

TEST(PutsBothWays, BytesThatDoNotArriveAreCounted) {
  const WiredRun run = run_over_wires(lead_both_ways, answer_both_ways, {}, true);
  EXPECT_GT(run.figure.wrong, 5);
  EXPECT_EQ(run.wrong_at_other, 0);
}

}  // namespace
}  // namespace gradrail::bench
