// A tree of aggregators against closed forms.
#include "bench/predict/aggregators.h"

#include "gtest/gtest.h"
#include "tests/bench/predict/simple_cluster.h"

namespace gradrail::bench::predict {
namespace {

constexpr double kMib = 1 << 20;

TEST(PredictAggregators, EachLevelHasTheIncastOfItsFanIn) {
  Description d = simple();
  d.cluster.workers = 64;
  d.cluster.nic_gbit = 1;
  const double push = 8 * push_s(kMib), back = 8 * return_s(kMib);  // at an eighth of the rate
  const Outcome flat = outcome_of(d);
  EXPECT_NEAR(flat.step_s_median, 64 * (push + back), 1e-4 * flat.step_s_median);
  EXPECT_EQ(flat.fan_in, 64u);
  d.cluster.aggregators = 8;
  const Outcome tree = outcome_of(d);
  EXPECT_NEAR(tree.step_s_median, 2 * 8 * (push + back), 1e-4 * tree.step_s_median);
  EXPECT_EQ(tree.fan_in, 8u);
  EXPECT_NEAR(tree.bytes_into_shard, flat.bytes_into_shard / 8, 1);
}

TEST(PredictAggregators, BucketsOverlapTheLevels) {
  Description d = simple();
  d.cluster.workers = 64;
  d.cluster.aggregators = 8;
  d.load.bytes = 64 << 20;
  // An aggregator receives the pushes of 64 buckets and the answers to 63. The last bucket has its way for itself then.
  const double expected = 64 * 8 * push_s(kMib) + 63 * return_s(kMib) + 8 * push_s(kMib) + (8 + 8) * return_s(kMib);
  EXPECT_NEAR(outcome_of(d).step_s_median, expected, 0.01 * expected);
}

TEST(PredictAggregators, CostsOfThreadsAddUp) {
  Description d = simple();
  d.cluster.aggregators = 1;
  d.costs.message_us = 10;
  d.costs.wake_us = 7;
  d.costs.apply_us = 30;
  d.costs.gradient_ns_per_byte = 0.5;
  d.costs.apply_ns_per_byte = 0.25;
  d.costs.pack_ns_per_byte = 0.125;
  // Four messages are sent and received, each receiver wakes up, the aggregator sums and the shard applies.
  const double threads = 8 * 10e-6 + 4 * 7e-6 + 2 * 30e-6 + kMib * (2 * 0.5 + 0.25 + 0.125) * 1e-9;
  const double expected = 2 * (push_s(kMib) + return_s(kMib)) + threads;
  EXPECT_NEAR(outcome_of(d).step_s_median, expected, 1e-5 * expected);
}

TEST(PredictAggregators, TheSumOfPackedGradientsIsBf16) {
  Description d = simple();
  d.cluster.workers = 16;
  d.cluster.aggregators = 4;
  d.load.push = ps::PushFormat::int8;
  const double int8_push_s = seconds_of(kMib / 4, sizeof(ps::SlotHeader) + 4.0 * (1 << 18) / 256);
  // The scales of int8 depend on its blocks: their bytes are within the tolerance.
  const double expected = 4 * (int8_push_s + push_s(kMib / 2) + 2 * return_s(kMib));
  EXPECT_NEAR(outcome_of(d).step_s_median, expected, 0.01 * expected);
  d.load.returns = ps::ReturnFormat::bf16;
  const double packed = 4 * (int8_push_s + push_s(kMib / 2) + 2 * return_s(kMib / 2));
  EXPECT_NEAR(outcome_of(d).step_s_median, packed, 0.01 * packed);
}

TEST(PredictAggregators, TheLastGroupMayBeSmaller) {
  Description d = simple();
  d.cluster.workers = 10;
  d.cluster.aggregators = 4;  // groups of 3, 3, 3 and 1
  const double expected = 3 * (push_s(kMib) + return_s(kMib)) + 4 * (push_s(kMib) + return_s(kMib));
  const Outcome o = outcome_of(d);
  // The small group pushes early and has the shard for itself for a time.
  EXPECT_GT(o.step_s_median, 0.85 * expected);
  EXPECT_LT(o.step_s_median, expected);
  EXPECT_EQ(o.fan_in, 4u);
}

TEST(PredictAggregators, CanBeTheBottleneck) {
  Description d = simple();
  d.cluster.workers = 64;
  d.cluster.aggregators = 2;
  EXPECT_EQ(outcome_of(d).bottleneck, "aggregator NIC");
  d.costs.gradient_ns_per_byte = 20;
  const Outcome o = outcome_of(d);
  EXPECT_EQ(o.bottleneck, "aggregator CPU");
  EXPECT_GT(o.aggregator_cpu, 0.5);
  d.costs.gradient_ns_per_byte = 0;
  d.costs.memory_gb_per_s = 0.05;
  d.cluster.nic_gbit = 1000;
  EXPECT_EQ(outcome_of(d).bottleneck, "aggregator memory");
}

TEST(PredictAggregators, StayInTheLeafOfTheirWorkers) {
  Description d = simple();
  d.cluster.workers = 32;
  d.load.bytes = 16 << 20;
  d.cluster.hosts_per_leaf = 9;  // eight workers, and the server or an aggregator
  d.cluster.oversubscription = 9;
  const Outcome flat = outcome_of(d);
  d.cluster.aggregators = 4;
  const Outcome tree = outcome_of(d);
  // The link between two leaves has the rate of one host, and sums cross it in the place of pushes.
  EXPECT_GT(flat.step_s_median, 3 * tree.step_s_median);
  EXPECT_GT(flat.step_s_median, 25 * 16 * push_s(kMib));
}

}  // namespace
}  // namespace gradrail::bench::predict
