// Runs with failures against closed forms.
#include "bench/predict/goodput.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/bench/predict/simple_cluster.h"

namespace gradrail::bench::predict {
namespace {

constexpr double kHour = 3600;
constexpr double kStep = 0.5;

/// Lost workers cost no time: they are noticed at once, and the others go on.
Description failing(double mtbf_hours) {
  Description d = simple();
  d.cluster.workers = 64;
  d.failures = {.mtbf_hours = mtbf_hours,
                .detect_s = 0,
                .restart_s = 300,
                .takeover_s = 0,
                .save_secs = 1200,
                .save_cost_s = 60,
                .run_hours = 2000,
                .runs = 50};
  return d;
}

/// J. T. Daly, 2006: each period of work and save begins again after a failure. A host that is down does not fail.
double daly(const Failures& f, double period_s) {
  const double mtbf = f.mtbf_hours * kHour;
  return period_s / ((mtbf + f.detect_s + f.restart_s) * std::expm1((period_s + f.save_cost_s) / mtbf));
}

TEST(PredictGoodput, WithoutABackupItIsThatOfYoungAndDaly) {
  Description d = failing(5);
  for (const double period : {300.0, 1200.0, 7200.0}) {
    d.failures.save_secs = period;
    EXPECT_NEAR(goodput_of(d, kStep, false).share, daly(d.failures, period), 0.002) << period;
  }
  const Goodput g = goodput_of(d, kStep, false);
  EXPECT_EQ(g.steps_per_s, g.share / kStep);
  EXPECT_LT(g.share_p5, g.share);
  EXPECT_LT(g.share_min, g.share_p5);
}

TEST(PredictGoodput, TheMeanCanBeBelowThePercentile) {
  Description d = failing(20'000);
  d.failures.save_secs = 1e9;  // no save in a run: a failure of the ps host loses the whole run
  d.failures.runs = 400;
  d.failures.run_hours = 500;
  const Goodput g = goodput_of(d, kStep, false);
  EXPECT_NEAR(g.share_p5, 1, 1e-9);
  EXPECT_LT(g.share, g.share_p5);
  EXPECT_LT(g.share_min, 0.9) << "the worst run explains the mean";
}

TEST(PredictGoodput, TheBestIntervalIsThatOfYoung) {
  Description d = failing(5);
  d.failures.save_secs = best_save_s(d);
  EXPECT_NEAR(d.failures.save_secs, std::sqrt(2 * 60 * 5 * kHour), 1e-6);
  const double best = goodput_of(d, kStep, false).share;
  for (const double factor : {0.25, 4.0}) {
    Description other = d;
    other.failures.save_secs *= factor;
    EXPECT_GT(best, goodput_of(other, kStep, false).share + 0.02) << factor;
  }
}

TEST(PredictGoodput, LostStepsAreThoseSinceTheLastSave) {
  Description d = failing(100);
  d.failures.save_cost_s = 0;
  const Goodput g = goodput_of(d, kStep, false);
  // At a random moment of the interval.
  EXPECT_NEAR(g.returns, 2000.0 / (100 + 300 / kHour), 2);
  EXPECT_NEAR(g.lost_steps / g.returns, 600 / kStep, 60);
}

TEST(PredictGoodput, ABackupLosesNoStep) {
  Description d = failing(1000);
  d.failures.restart_s = 0;
  d.failures.save_cost_s = 0;
  d.failures.detect_s = 4;
  d.failures.takeover_s = 20;
  d.load.mode = {.kind = ModeKind::quorum, .bound = d.cluster.workers - 1};
  d.failures.runs = 500;
  const Goodput g = goodput_of(d, kStep, true);
  EXPECT_EQ(g.lost_steps, 0);
  EXPECT_EQ(g.returns, 0);
  // Each of both hosts is noticed, and one of two failures is that of the serving one.
  const double failures = 2 * 2000 / 1000.0;
  EXPECT_NEAR(g.stalled_s, failures * (4 + 20 / 2.0), 3);
  EXPECT_NEAR(g.share, 1 - g.stalled_s / (2000 * kHour), 1e-9);
}

TEST(PredictGoodput, LossOfBothReturnsToACheckpoint) {
  Description d = failing(100);
  d.failures.restart_s = 10 * kHour;
  const Goodput g = goodput_of(d, kStep, true);
  // A host is down for a share of 10 / 110, and the failure of the other one is then a loss of both.
  const double failures = 2 * 2000 / 110.0;
  EXPECT_NEAR(g.returns, failures * 10 / 110, 0.6);
  EXPECT_LT(g.returns, goodput_of(d, kStep, false).returns / 3);
  EXPECT_GT(g.lost_steps, 0);
}

TEST(PredictGoodput, ModesThatWaitForLostWorkersStall) {
  Description d = failing(1000);
  d.failures.detect_s = 60;
  d.failures.restart_s = 0;
  d.failures.save_cost_s = 0;
  const auto stalled = [&](Mode mode) {
    d.load.mode = mode;
    return goodput_of(d, kStep, true).stalled_s;
  };
  // 64 workers; the pair of servers stalls in all modes.
  const double sync = stalled({.kind = ModeKind::sync});
  EXPECT_NEAR(sync, 66 * 2 * 60.0, 0.02 * sync);
  EXPECT_NEAR(stalled({.kind = ModeKind::ssp, .bound = 2}), sync, 1e-6);
  for (const Mode mode : {Mode{.kind = ModeKind::async}, Mode{.kind = ModeKind::quorum, .bound = 63}})
    EXPECT_NEAR(stalled(mode), 2 * 2 * 60.0, 60) << mode_text(mode);
  // Two workers of a host fail together.
  d.cluster.workers_per_host = 2;
  EXPECT_NEAR(stalled({.kind = ModeKind::quorum, .bound = 63}), 34 * 2 * 60.0, 0.03 * sync);
}

TEST(PredictGoodput, AbsentWorkersAreMissingStepsInAsync) {
  Description d = failing(100);
  d.failures.restart_s = 10 * kHour;
  d.failures.save_cost_s = 0;
  d.failures.runs = 20;
  Goodput g = goodput_of(d, kStep, true);
  EXPECT_NEAR(g.absent, 10 / 110.0, 0.003);
  const double sync = g.share;
  d.load.mode.kind = ModeKind::async;
  g = goodput_of(d, kStep, true);
  EXPECT_NEAR(g.share, sync * 100 / 110, 0.01);
}

TEST(PredictGoodput, EqualDescriptionsGiveEqualRuns) {
  const Description d = failing(50);
  EXPECT_EQ(goodput_of(d, kStep, false).share, goodput_of(d, kStep, false).share);
}

}  // namespace
}  // namespace gradrail::bench::predict
