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
  d.costs.apply_us = 30;
  d.costs.gradient_ns_per_byte = 0.5;
  d.costs.apply_ns_per_byte = 0.25;
  d.costs.pack_ns_per_byte = 0.125;
  // Four times a message is handled.
  const double threads = 4 * 10e-6 + 30e-6 + (1 << 20) * 0.875e-9;
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
  // All pushes, the acknowledgments of the returns beside them, and the return of the last bucket.
  const double expected = 4 * (32 * push_s(1 << 20) + 31 * acknowledgment_s(1 << 20) + return_s(1 << 20));
  EXPECT_NEAR(o.step_s_median, expected, 0.001 * expected);
  EXPECT_NEAR(o.shard_nic, 1 - 4 * return_s(1 << 20) / expected, 0.001);
}

TEST(PredictSimulation, ShardsOnSeveralHostsShareTheLoad) {
  Description d = simple();
  d.load.bytes = 16 << 20;
  d.cluster.workers = 16;
  const double one = outcome_of(d).step_s_median;
  d.cluster.ps = 4;
  EXPECT_NEAR(outcome_of(d).step_s_median, one / 4, 0.15 * one);
  // On one host they share its NIC.
  d.cluster.ps = 1;
  d.cluster.shards = 4;
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
  d.load.bytes = 64 << 20;
  d.cluster.rtt_us = 1e6;
  // Of 64 buckets 32 have a place. Each other one leaves after the answer to the one before it.
  const double expected = 2 + 33 * push_s(1 << 20) + 2 * return_s(1 << 20);
  EXPECT_NEAR(outcome_of(d).step_s_median, expected, 1e-3);
}

/// The compute times of a step differ by a factor of about 30. Exchanges take almost no time.
Description with_stragglers() {
  Description d = simple();
  d.cluster.workers = 16;
  d.load.bytes = 4096;
  d.load.compute_ms = 10;
  d.load.compute_sigma = 1;
  return d;
}

TEST(PredictSimulation, SyncWaitsForStragglersAndAsyncDoesNot) {
  Description d = with_stragglers();
  const Outcome sync = outcome_of(d);
  EXPECT_EQ(sync.bottleneck, "stragglers");
  d.load.mode.kind = ModeKind::async;
  const Outcome async = outcome_of(d);
  EXPECT_EQ(async.bottleneck, "compute");
  EXPECT_NEAR(async.step_s_mean, 10e-3, 2e-3);
  EXPECT_GT(sync.step_s_mean, 3 * async.step_s_mean);
  // Ahead by the bound, a worker waits.
  d.load.mode = {.kind = ModeKind::ssp, .bound = 2};
  const double ssp = outcome_of(d).step_s_mean;
  EXPECT_LT(ssp, 0.8 * sync.step_s_mean);
  EXPECT_GT(ssp, 1.1 * async.step_s_mean);
  d.load.mode.bound = 1000;
  EXPECT_NEAR(outcome_of(d).step_s_mean, async.step_s_mean, 1e-6);
}

TEST(PredictSimulation, QuorumDoesNotWaitForStragglers) {
  Description d = with_stragglers();
  const double sync = outcome_of(d).step_s_median;
  d.load.mode = {.kind = ModeKind::quorum, .bound = 12};
  const double quorum = outcome_of(d).step_s_median;
  EXPECT_LT(quorum, 0.6 * sync);
  d.load.mode.grace.seconds = 0.01;
  EXPECT_GT(outcome_of(d).step_s_median, quorum + 3e-3) << "a grace window waits for some of them";
  d.load.mode = {.kind = ModeKind::quorum, .bound = 12, .drops_late = true};
  const Outcome dropping = outcome_of(d);
  EXPECT_LT(dropping.step_s_median, 0.6 * sync);
  EXPECT_GT(dropping.dropped_share, 0.02);
}

TEST(PredictSimulation, SpreadOfComputeTimeDelaysSync) {
  Description d = simple();
  d.cluster.workers = 64;
  d.load.bytes = 4096;
  d.load.compute_ms = 10;
  d.load.compute_sigma = 0.2;
  const Outcome o = outcome_of(d);
  // The largest of 64 normal numbers has a mean of 2.4 (Blom 1958).
  EXPECT_NEAR(o.step_s_mean, 10e-3 * std::exp(0.2 * 2.4 - 0.02), 1e-3);
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
      d.cluster.workers = 512;
      d.cluster.ps = 4;
      d.cluster.workers_per_host = 4;
      d.load.bytes = 4 << 20;
      d.load.bucket_bytes = 256 << 10;
      d.load.mode.kind = mode;
      d.load.compute_ms = 5;
      d.costs.message_us = message_us;
      const Outcome groups = outcome_of(d);
      d.load.compute_sigma = 1e-9;
      const Outcome single = outcome_of(d);
      EXPECT_EQ(groups.simulated_workers, 256u);
      EXPECT_EQ(single.simulated_workers, 512u);
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
  d.load.mode = {.kind = ModeKind::quorum, .bound = 1020};
  const Outcome groups = outcome_of(d);
  EXPECT_EQ(groups.simulated_workers, 256u);
  d.load.compute_sigma = 1e-9;
  EXPECT_NEAR(groups.step_s_mean, outcome_of(d).step_s_mean, 0.03 * groups.step_s_mean);
  d.load.compute_sigma = 0;
  d.load.mode.bound = 1022;
  EXPECT_EQ(outcome_of(d).simulated_workers, 1024u) << "two of 1024 are no whole simulated worker";
}

TEST(PredictSimulation, NoResourceWorksLongerThanTheRun) {
  Description d;
  d.load.mode = {.kind = ModeKind::quorum, .bound = 1};
  const Outcome o = outcome_of(d);
  for (const double share : {o.worker_nic, o.shard_nic, o.shard_cpu, o.shard_memory, o.worker_cpu, o.compute}) {
    EXPECT_GE(share, 0);
    EXPECT_LE(share, 1);
  }
}

TEST(PredictSimulation, EqualDescriptionsGiveEqualRuns) {
  const Description d = with_stragglers();
  const Outcome first = outcome_of(d), again = outcome_of(d);
  EXPECT_EQ(first.step_s_mean, again.step_s_mean);
  EXPECT_EQ(first.step_s_p99, again.step_s_p99);
  EXPECT_EQ(first.events, again.events);
}

}  // namespace
}  // namespace gradrail::bench::predict
