// The model against closed forms. Costs of threads are 0 where a test is about the network.
#include "bench/predict/simulation.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/bench/predict/simple_cluster.h"

namespace gradrail::bench::predict {
namespace {

TEST(PredictSimulation, OneWorkerPushesAndGetsParameters) {
  Description d = simple();
  const double expected = push_s(1 << 20) + return_s(1 << 20);
  EXPECT_NEAR(outcome_of(d).step_s_median, expected, 1e-6 * expected);
  d.cluster.rtt_us = 500;
  EXPECT_NEAR(outcome_of(d).step_s_median, expected + 500e-6, 1e-6 * expected);
}

TEST(PredictSimulation, CostsOfThreadsAddUp) {
  Description d = simple();
  d.costs.message_us = 10;
  d.costs.wake_us = 7;
  d.costs.apply_us = 30;
  d.costs.gradient_ns_per_byte = 0.5;
  d.costs.apply_ns_per_byte = 0.25;
  d.costs.pack_ns_per_byte = 0.125;
  // Four times a message is handled, and twice a thread wakes up.
  const double threads = 4 * 10e-6 + 2 * 7e-6 + 30e-6 + (1 << 20) * 0.875e-9;
  const double expected = push_s(1 << 20) + return_s(1 << 20) + threads;
  EXPECT_NEAR(outcome_of(d).step_s_median, expected, 1e-5 * expected);
}

TEST(PredictSimulation, IncastIsLimitedByTheNicOfTheShard) {
  Description d = simple();
  d.cluster.workers = 8;
  const Outcome o = outcome_of(d);
  const double expected = 8 * (push_s(1 << 20) + return_s(1 << 20));
  EXPECT_NEAR(o.step_s_median, expected, 1e-6 * expected);
  EXPECT_EQ(o.bottleneck, "shard NIC");
  // One direction follows the other.
  EXPECT_NEAR(o.shard_nic, 0.5, 0.01);
}

TEST(PredictSimulation, ManyBucketsUseBothDirections) {
  Description d = simple();
  d.cluster.workers = 4;
  d.load.bytes = 32 << 20;
  const Outcome o = outcome_of(d);
  // All pushes, and the return of the last bucket.
  const double expected = 4 * (32 * push_s(1 << 20) + return_s(1 << 20));
  EXPECT_NEAR(o.step_s_median, expected, 0.001 * expected);
  EXPECT_NEAR(o.shard_nic, 32.0 / 33, 0.01);
}

TEST(PredictSimulation, TwoRailsHalveTheTime) {
  Description d = simple();
  d.load.bytes = 16 << 20;
  d.cluster.workers = 4;
  const double one = outcome_of(d).step_s_median;
  d.cluster.rails = 2;
  EXPECT_NEAR(outcome_of(d).step_s_median, one / 2, 0.05 * one);
}

TEST(PredictSimulation, ShardsOnSeveralHostsShareTheLoad) {
  Description d = simple();
  d.load.bytes = 16 << 20;
  d.cluster.workers = 16;
  const double one = outcome_of(d).step_s_median;
  d.cluster.ps = 4;
  EXPECT_NEAR(outcome_of(d).step_s_median, one / 4, 0.15 * one);
  // On one host they share its NIC.
  d.cluster.ps_per_host = 4;
  EXPECT_NEAR(outcome_of(d).step_s_median, one, 0.25 * one);
}

TEST(PredictSimulation, WorkersOfAHostShareItsNic) {
  Description d = simple();
  d.cluster.workers = 4;
  d.cluster.ps = 4;
  d.load.bytes = 16 << 20;
  const double apart = outcome_of(d).step_s_median;
  d.cluster.workers_per_host = 4;
  const Outcome together = outcome_of(d);
  EXPECT_GT(together.step_s_median, 3 * apart);
  EXPECT_EQ(together.bottleneck, "worker NIC");
}

TEST(PredictSimulation, OversubscribedSwitchesLimit) {
  Description d = simple();
  d.cluster.workers = 12;
  d.cluster.ps = 4;
  d.cluster.hosts_per_leaf = 4;
  d.load.bytes = 16 << 20;
  const double full = outcome_of(d).step_s_median;
  d.cluster.oversubscription = 8;
  const Outcome limited = outcome_of(d);
  EXPECT_GT(limited.step_s_median, 1.5 * full);
  EXPECT_EQ(limited.bottleneck, "switch");
  EXPECT_GT(limited.fabric, 0.4);
}

TEST(PredictSimulation, SmallPushesTakeLessTime) {
  Description d = simple();
  d.cluster.workers = 4;
  d.load.bytes = 16 << 20;
  const double whole = outcome_of(d).step_s_median;
  d.load.push = PushFormat::bf16;
  d.load.returns = ReturnFormat::bf16;
  EXPECT_NEAR(outcome_of(d).step_s_median, whole / 2, 0.01 * whole);
}

TEST(PredictSimulation, LayersOverlapTheirBackwardPass) {
  Description d = simple();
  d.load.bytes = 4 << 20;
  d.load.compute_ms = 100;
  const double after = outcome_of(d).step_s_median;
  // A quarter of the model after each quarter of the pass: the last bucket alone is exposed.
  for (int i = 1; i <= 4; ++i) d.load.layers.push_back({.elements = 1 << 18, .ready_us = i * 25'000.0});
  const double exposed = outcome_of(d).step_s_median - 0.1;
  EXPECT_NEAR(exposed, push_s(1 << 20) + return_s(1 << 20), 1e-5);
  EXPECT_GT(after - 0.1, 2 * exposed);
}

TEST(PredictSimulation, SlotPlacesDelayBuckets) {
  Description d = simple();
  d.load.bytes = 8 << 20;
  d.load.slot_bytes = 1 << 20;
  // With one place a bucket leaves after the answer to the one before it.
  const double expected = 8 * (push_s(1 << 20) + return_s(1 << 20));
  EXPECT_NEAR(outcome_of(d).step_s_median, expected, 1e-6 * expected);
}

/// Three workers compute for 10 ms, one for 50 ms. Exchanges take almost no time.
Description with_slow_worker() {
  Description d = simple();
  d.cluster.workers = 4;
  d.load.bytes = 4096;
  d.load.compute_ms = 10;
  d.load.slow_workers = 1;
  d.load.slowdown = 5;
  d.load.steps = 40;
  return d;
}

TEST(PredictSimulation, SyncWaitsForASlowWorkerAndAsyncDoesNot) {
  Description d = with_slow_worker();
  const Outcome sync = outcome_of(d);
  EXPECT_NEAR(sync.step_s_median, 50e-3, 1e-3);
  EXPECT_EQ(sync.bottleneck, "stragglers");
  d.load.mode.kind = ModeKind::async;
  const Outcome async = outcome_of(d);
  EXPECT_NEAR(async.step_s_median, 10e-3, 1e-3);
  EXPECT_EQ(async.bottleneck, "compute");
}

TEST(PredictSimulation, QuorumDoesNotWaitForIt) {
  Description d = with_slow_worker();
  d.load.mode = {.kind = ModeKind::quorum, .bound = 3, .drops_late = true};
  const Outcome dropping = outcome_of(d);
  EXPECT_NEAR(dropping.step_s_median, 10e-3, 1e-3);
  EXPECT_GT(dropping.dropped_share, 0.02);
  d.load.mode = {.kind = ModeKind::quorum, .bound = 3};
  EXPECT_NEAR(outcome_of(d).step_s_median, 10e-3, 1e-3);
}

TEST(PredictSimulation, AGraceWindowWaitsForIt) {
  Description d = with_slow_worker();
  d.load.mode = {.kind = ModeKind::quorum, .bound = 3, .grace = {.seconds = 0.015}};
  EXPECT_NEAR(outcome_of(d).step_s_median, 25e-3, 2e-3);
}

TEST(PredictSimulation, SspWaitsAtItsBound) {
  Description d = with_slow_worker();
  d.load.mode = {.kind = ModeKind::ssp, .bound = 2};
  const Outcome o = outcome_of(d);
  // Ahead by the bound, the others have the pace of the slow one.
  EXPECT_NEAR(o.step_s_median, 50e-3, 1e-3);
  EXPECT_NEAR(o.updates_per_s, 4 / 50e-3, 8);
  d.load.mode.bound = 1000;
  EXPECT_NEAR(outcome_of(d).step_s_median, 10e-3, 1e-3);
}

TEST(PredictSimulation, SpreadOfComputeTimeDelaysSync) {
  Description d = simple();
  d.cluster.workers = 64;
  d.load.bytes = 4096;
  d.load.compute_ms = 10;
  d.load.compute_sigma = 0.2;
  d.load.steps = 50;
  const Outcome o = outcome_of(d);
  // The largest of 64 normal numbers has a mean of 2.4 (Blom 1958).
  EXPECT_NEAR(o.step_s_mean, 10e-3 * std::exp(0.2 * 2.4 - 0.02), 0.6e-3);
  EXPECT_GT(o.step_s_p99, o.step_s_median);
}

TEST(PredictSimulation, MemoryOfTheHostLimits) {
  Description d = simple();
  d.cluster.workers = 8;
  d.costs.memory_gb_per_s = 0.1;
  const Outcome o = outcome_of(d);
  // A push arrives in memory and is read; parameters are read, written and read for each answer.
  EXPECT_GT(o.step_s_median, (16 + 2) * (1 << 20) / 0.1e9);
  EXPECT_EQ(o.bottleneck, "shard memory");
}

TEST(PredictSimulation, ShardsOfAHostApplyAtTheSameTime) {
  Description d = simple();
  d.cluster.workers = 8;
  d.load.bytes = 4 << 20;
  d.load.bucket_bytes = 1 << 20;
  d.costs.gradient_ns_per_byte = 5;  // 42 ms for a bucket
  d.costs.memory_gb_per_s = 1000;
  const double one = outcome_of(d).step_s_median;
  d.cluster.shards = 4;
  const Outcome four = outcome_of(d);
  EXPECT_GT(one, 4 * 42e-3);
  EXPECT_NEAR(four.step_s_median, 42e-3 + 4 * 8 * (push_s(1 << 20) + return_s(1 << 20)), 2e-3);
}

TEST(PredictSimulation, LossesCostTime) {
  Description d = simple();
  d.cluster.rtt_us = 200;
  const double without = outcome_of(d).step_s_median;
  d.cluster.loss = 0.01;
  const double with = outcome_of(d).step_s_median;
  // Mathis et al.: a packet for each 1.22 / √loss of a round trip.
  EXPECT_GT(with, 2 * (1 << 20) / (kPayload / 200e-6 * 12.2));
  EXPECT_GT(with, 1.5 * without);
}

TEST(PredictSimulation, LossesLimitAConnectionWithManyBuckets) {
  Description d = simple();
  d.load.bytes = 16 << 20;
  d.cluster.rtt_us = 4000;
  d.cluster.loss = 0.01;
  // 4.4 MB/s for each bucket after the one before it.
  EXPECT_GT(outcome_of(d).step_s_median, (16 << 20) / (kPayload / 4e-3 * 12.2));
  // Connections with a longer path use BBR: it has the rate of the link, 1 GB/s, and round trips of losses.
  d.cluster.rtt_us = 6000;
  EXPECT_LT(outcome_of(d).step_s_median, 0.1);
}

/// 4,096 workers and 256 ps with the default flags take minutes worker by worker (830 million events).
TEST(PredictSimulation, WorkOfALargeClusterIsBounded) {
  Description d;
  d.cluster.workers = 4096;
  d.cluster.ps = 256;
  d.load.bytes = 64 << 20;
  d.load.bucket_bytes = 256 << 10;
  const Outcome o = outcome_of(d);
  EXPECT_EQ(o.simulated_workers, 256u);
  // Nine events for each pair of a simulated worker and a bucket in each of at most six steps.
  EXPECT_LT(o.events, 256 * 256 * 9 * 6u);
  d.load.compute_sigma = 0.1;
  d.load.compute_ms = 1;
  d.cluster.ps = 1;
  d.load.bytes = 1 << 20;
  d.load.bucket_bytes = 1 << 20;
  EXPECT_EQ(outcome_of(d).simulated_workers, 4096u) << "different workers are simulated one by one";
}

/// A spread of 1e-9 lets the model simulate each worker.
TEST(PredictSimulation, GroupsOfEqualWorkersHaveTheTimesOfSingleOnes) {
  for (const ModeKind mode : {ModeKind::sync, ModeKind::async}) {
    for (const double message_us : {0.5, 3.0}) {
      Description d;
      d.cluster.workers = 1024;
      d.cluster.ps = 4;
      d.cluster.workers_per_host = 4;
      d.load.bytes = 4 << 20;
      d.load.bucket_bytes = 256 << 10;
      d.load.steps = 3;
      d.load.mode.kind = mode;
      d.load.compute_ms = 5;
      d.costs.message_us = message_us;
      const Outcome groups = outcome_of(d);
      d.load.compute_sigma = 1e-9;
      const Outcome single = outcome_of(d);
      EXPECT_EQ(groups.simulated_workers, 256u);
      EXPECT_EQ(single.simulated_workers, 1024u);
      EXPECT_NEAR(groups.step_s_median, single.step_s_median, 0.03 * single.step_s_median);
      EXPECT_NEAR(groups.updates_per_s, single.updates_per_s, 0.05 * single.updates_per_s);
      EXPECT_NEAR(groups.shard_nic, single.shard_nic, 0.03);
      EXPECT_NEAR(groups.shard_cpu, single.shard_cpu, 0.03);
      EXPECT_NEAR(groups.shard_memory, single.shard_memory, 0.03);
      EXPECT_NEAR(groups.worker_nic, single.worker_nic, 0.03);
      EXPECT_EQ(groups.bottleneck, single.bottleneck);
    }
  }
}

TEST(PredictSimulation, GroupsKeepTheShareOfWorkersThatAreNotWaitedFor) {
  Description d = simple();
  d.cluster.workers = 1024;
  d.load.bytes = 4096;
  d.load.compute_ms = 10;
  d.load.slow_workers = 4;
  d.load.slowdown = 5;
  d.load.mode = {.kind = ModeKind::quorum, .bound = 1020};
  const Outcome o = outcome_of(d);
  EXPECT_EQ(o.simulated_workers, 256u);
  EXPECT_LT(o.step_s_median, 25e-3);  // the exchange of 1,024 workers takes 9 ms, the slow ones compute for 50 ms
  d.load.mode.bound = 1022;
  EXPECT_EQ(outcome_of(d).simulated_workers, 1024u) << "two of 1024 are no whole simulated worker";
}

TEST(PredictSimulation, EqualSeedsGiveEqualRuns) {
  Description d = simple();
  d.cluster.workers = 8;
  d.cluster.loss = 0.001;
  d.cluster.rtt_us = 50;
  d.load.compute_ms = 1;
  d.load.compute_sigma = 0.3;
  const Outcome first = outcome_of(d), again = outcome_of(d);
  EXPECT_EQ(first.step_s_mean, again.step_s_mean);
  EXPECT_EQ(first.step_s_p99, again.step_s_p99);
  EXPECT_EQ(first.events, again.events);
  d.load.seed = 2;
  EXPECT_NE(first.step_s_mean, outcome_of(d).step_s_mean);
}

}  // namespace
}  // namespace gradrail::bench::predict
