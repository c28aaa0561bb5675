#include "tools/monitor/task_metrics.h"

#include "ps/protocol/control.pb.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace gradrail::tools {
namespace {

const Metric& find(const Metrics& metrics, const std::string& name) {
  for (const Metric& metric : metrics)
    if (metric.name == name) return metric;
  ADD_FAILURE() << "no " << name;
  return metrics[0];
}

TEST(WorkerMetrics, CountsLatenciesUpToEachBoundInSeconds) {
  ClientStats stats;
  for (const int64_t ns : {5'000, 5'000, 300'000, 2'000'000'000}) stats.exchange.record(ns);
  const Metrics metrics = worker_metrics(stats, Duration::zero());
  const Metric::Sample& latency = find(metrics, "gradrail_exchange_latency_seconds").samples[0];
  EXPECT_EQ(latency.count, 4u);
  EXPECT_NEAR(latency.sum, 2.00031, 1e-9);
  for (const auto& [bound, count] : latency.buckets)
    EXPECT_EQ(count, (bound > 5e-6 ? 2u : 0u) + (bound > 3e-4 ? 1u : 0u) + (bound > 2.0 ? 1u : 0u)) << bound;
  EXPECT_LT(latency.buckets.front().first, 5e-6);
  EXPECT_GT(latency.buckets.back().first, 10.0);
}

TEST(WorkerMetrics, StalenessIsCumulativeAndTheLastCellIsBeyondAllBounds) {
  ClientStats stats;
  stats.staleness[0] = 5;
  stats.staleness[2] = 3;
  stats.staleness.back() = 2;
  stats.staleness_sum = 6 + 2 * 50;
  const Metrics metrics = worker_metrics(stats, Duration::zero());
  const Metric::Sample& staleness = find(metrics, "gradrail_staleness_steps").samples[0];
  EXPECT_EQ(staleness.count, 10u);
  EXPECT_EQ(staleness.sum, 106.0);
  EXPECT_EQ(staleness.buckets[0], std::make_pair(0.0, uint64_t{5}));
  EXPECT_EQ(staleness.buckets[1], std::make_pair(1.0, uint64_t{5}));
  EXPECT_EQ(staleness.buckets[2], std::make_pair(2.0, uint64_t{8}));
  EXPECT_EQ(staleness.buckets.back(), std::make_pair(32.0, uint64_t{8}));
}

TEST(WorkerMetrics, BytesHaveTheDirectionsOfTheWorker) {
  ClientStats stats;
  stats.path_bytes = {{.path = "tcp", .pushed = 10, .returned = 20, .pushed_fp32 = 30, .returned_fp32 = 40}};
  stats.wait_ns = 1'500'000'000;
  const Metrics metrics = worker_metrics(stats, std::chrono::milliseconds(250));
  const Metric& bytes = find(metrics, "gradrail_bytes_total");
  ASSERT_EQ(bytes.samples.size(), 2u);
  for (const Metric::Sample& sample : bytes.samples) {
    EXPECT_EQ(sample.labels[1].second, "tcp");
    EXPECT_EQ(sample.value, sample.labels[0].second == "out" ? 10 : 20);
  }
  for (const Metric::Sample& sample : find(metrics, "gradrail_fp32_bytes_total").samples)
    EXPECT_EQ(sample.value, sample.labels[0].second == "out" ? 30 : 40);
  EXPECT_EQ(find(metrics, "gradrail_wait_seconds_total").samples[0].value, 1.5);
  EXPECT_EQ(find(metrics, "gradrail_exchange_under_way_seconds").samples[0].value, 0.25);
}

/// {direction, path, rail}: value
std::map<std::vector<std::string>, double> rails_of(const Metrics& metrics) {
  std::map<std::vector<std::string>, double> values;
  for (const Metric::Sample& sample : find(metrics, "gradrail_rail_bytes_total").samples)
    values[{sample.labels[0].second, sample.labels[1].second, sample.labels[2].second}] = sample.value;
  return values;
}

TEST(WorkerMetrics, BytesOfARailHaveTheDirectionsOfTheWorker) {
  ClientStats stats;
  EXPECT_TRUE(rails_of(worker_metrics(stats, Duration::zero())).empty());
  stats.rail_bytes = {{"tcp", "10.0.0.1", 10, 20}, {"tcp", "10.1.0.1", 1, 2}};
  const std::map<std::vector<std::string>, double> expected = {{{"in", "tcp", "10.0.0.1"}, 20},
                                                               {{"out", "tcp", "10.0.0.1"}, 10},
                                                               {{"in", "tcp", "10.1.0.1"}, 2},
                                                               {{"out", "tcp", "10.1.0.1"}, 1}};
  EXPECT_EQ(rails_of(worker_metrics(stats, Duration::zero())), expected);
}

TEST(PsMetrics, BytesOfARailHaveTheDirectionsOfThePs) {
  ps::proto::StatsReply stats;
  ps::proto::StatsReply::Rail& rail = *stats.add_rails();
  rail.set_path("tcp");
  rail.set_address("10.0.0.1");
  rail.set_bytes_in(5);
  rail.set_bytes_out(7);
  const std::map<std::vector<std::string>, double> expected = {{{"in", "tcp", "10.0.0.1"}, 5},
                                                               {{"out", "tcp", "10.0.0.1"}, 7}};
  EXPECT_EQ(rails_of(ps_metrics(stats)), expected);
}

TEST(PsMetrics, GradientsWithNanAreCountedByWorker) {
  ps::proto::StatsReply stats;
  stats.set_non_finite_buckets(3);
  ps::proto::StatsReply::NonFinite& of = *stats.add_non_finite_gradients();
  of.set_task_index(1);
  of.set_gradients(5);
  EXPECT_EQ(find(ps_metrics(stats), "gradrail_non_finite_buckets").samples[0].value, 3);
  const Metric counted = find(ps_metrics(stats), "gradrail_non_finite_gradients_total");
  ASSERT_EQ(counted.samples.size(), 1u);
  EXPECT_EQ(counted.samples[0].value, 5);
  EXPECT_EQ(counted.samples[0].labels, (std::vector<std::pair<std::string, std::string>>{{"worker", "1"}}));
}

TEST(PsMetrics, AnAgeAndAWindowAreShownOnlyWhereThereIsOne) {
  ps::proto::StatsReply stats;
  stats.add_live_workers("a");
  stats.set_updates(7);
  const auto has = [&](const char* name) {
    std::set<std::string> names;
    for (const Metric& metric : ps_metrics(stats)) names.insert(metric.name);
    return names.count(name) == 1;
  };
  EXPECT_EQ(find(ps_metrics(stats), "gradrail_workers_live").samples[0].value, 1);
  EXPECT_EQ(find(ps_metrics(stats), "gradrail_updates_total").samples[0].value, 7);
  EXPECT_FALSE(has("gradrail_checkpoint_age_seconds"));
  EXPECT_FALSE(has("gradrail_grace_window_seconds"));
  stats.set_checkpoint_age_s(0.0);
  stats.set_grace_window_s(0.25);
  EXPECT_TRUE(has("gradrail_checkpoint_age_seconds"));
  EXPECT_EQ(find(ps_metrics(stats), "gradrail_grace_window_seconds").samples[0].value, 0.25);
}

}  // namespace
}  // namespace gradrail::tools
