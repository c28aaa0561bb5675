#include "transport/common/path_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>

namespace gradrail::transport::common {
namespace {

using namespace std::chrono_literals;
using Verdict = PathWatch::Verdict;

constexpr Duration kLimit = 10s;
constexpr Duration kStep = 100ms;

/// A connection with one transfer that the device does not finish.
struct SilentDevice {
  PathWatch watch{kLimit};
  TimePoint now{};
  uint64_t finished = 0;
  uint64_t posted_bytes = 0;
  uint32_t probes = 0;

  Verdict look() {
    now += kStep;
    return watch.check(now, /*waits=*/true, finished, [this] { return posted_bytes; });
  }
  /// Looks for `time`. `hear` gets the number of each probe. Returns when the path was lost, or `time`.
  Duration run(Duration time, const std::function<void(uint32_t)>& hear) {
    for (const TimePoint start = now; now - start < time;) {
      const Verdict verdict = look();
      if (verdict == Verdict::lost) return now - start;
      if (verdict == Verdict::probe) {
        ++probes;
        const uint32_t number = watch.next_probe();
        watch.probed(now);
        hear(number);
      }
    }
    return time;
  }
  Duration run_with_answers(Duration time) {
    return run(time, [this](uint32_t number) { watch.answered(number); });
  }
};

void ignore(uint32_t) {}

TEST(PathWatch, LosesAPathAtTheLimitIfThePeerAnswers) {
  SilentDevice device;
  device.look();  // the first look begins the silence
  const Duration lost = device.run_with_answers(60s);
  EXPECT_GE(lost, kLimit);
  EXPECT_LE(lost, kLimit + 2 * kStep);
  EXPECT_EQ(device.probes, PathWatch::kAnswers);
}

TEST(PathWatch, KeepsAPeerThatDoesNotAnswer) {
  SilentDevice device;
  EXPECT_EQ(device.run(3600s, ignore), Duration(3600s));
  EXPECT_EQ(device.probes, 1u);
}

TEST(PathWatch, CountsFromTheAnswersOfASlowPeer) {
  SilentDevice device;
  uint32_t open = 0;
  device.run(60s, [&](uint32_t number) { open = number; });
  device.watch.answered(open);
  // Two more answers, and a probe each second.
  const Duration lost = device.run_with_answers(60s);
  EXPECT_GE(lost, Duration(1s));
  EXPECT_LE(lost, Duration(3s));
}

TEST(PathWatch, AFinishedTransferEndsTheSilence) {
  SilentDevice device;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(device.run_with_answers(kLimit - 1s), Duration(kLimit - 1s)) << i;
    ++device.finished;
  }
}

TEST(PathWatch, AnAnswerToAFormerProbeDoesNotCount) {
  SilentDevice device;
  uint32_t former = 0;
  device.run(kLimit, [&](uint32_t number) { former = number; });
  ASSERT_NE(former, 0u);
  ++device.finished;
  // Each probe is answered with the number of the former silence.
  EXPECT_EQ(device.run(60s, [&](uint32_t) { device.watch.answered(former); }), Duration(60s));
}

TEST(PathWatch, AProbeThatWasNotSentIsSentAgain) {
  SilentDevice device;
  device.look();
  for (int i = 0; i < 200; ++i) device.look();  // no probed(): the side channel was full
  EXPECT_EQ(device.look(), Verdict::probe);
  EXPECT_LT(device.run_with_answers(60s), Duration(60s));
}

TEST(PathWatch, ARepeatedAnswerCountsOnce) {
  SilentDevice device;
  uint32_t open = 0;
  device.run(kLimit + 1s, [&](uint32_t number) { open = number; });
  for (uint32_t i = 0; i < PathWatch::kAnswers; ++i) device.watch.answered(open);
  EXPECT_EQ(device.run(60s, ignore), Duration(60s));
}

TEST(PathWatch, AllowsTheTimeOfThePostedBytes) {
  SilentDevice device;
  device.posted_bytes = 40'000'000;  // 10 s at 4 MB/s
  device.look();
  const Duration lost = device.run_with_answers(60s);
  EXPECT_GE(lost, kLimit + 10s);
  EXPECT_LE(lost, kLimit + 10s + 2 * kStep);
}

TEST(PathWatch, ADeviceWithoutTransfersIsNotSilent) {
  SilentDevice device;
  device.run_with_answers(kLimit - 1s);
  device.now += 3600s;
  EXPECT_EQ(device.watch.check(device.now, /*waits=*/false, 0, [] { return uint64_t{0}; }), Verdict::fine);
  EXPECT_EQ(device.run_with_answers(kLimit - 1s), Duration(kLimit - 1s));
}

}  // namespace
}  // namespace gradrail::transport::common
