// Windows of TCP: acknowledgments wait in the queue of the other direction.
#include "bench/predict/network/network.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradrail::bench::predict {
namespace {

/// One shard; a byte in a nanosecond; no bytes around IP packets.
Cluster cluster(uint32_t queue_kib) {
  return {.workers = 4,
          .ps = 1,
          .nic_gbit = 8,
          .rtt_us = 0,
          .packets_per_ack = 1e9,
          .queue_kib = queue_kib,
          .frame_bytes = 0};
}

constexpr double kBytes = 1e6;

/// The arrival of a push of worker 0. The shard answers `answers` other workers with ten times its bytes.
double arrival_us(const Cluster& cluster, uint32_t answers, double push_bytes = kBytes) {
  EventQueue events;
  Network network(cluster, events, 1);
  network.send({.worker = 0, .bytes = push_bytes}, 0);
  for (uint32_t i = 1; i <= answers; ++i) network.send({.worker = i, .is_answer = true, .bytes = 10 * kBytes}, 0);
  while (!events.empty()) {
    const Event event = events.take();
    if (event.kind == Event::Kind::departure) network.depart(event.object, event.at);
    if (event.kind == Event::Kind::link) network.on_link(event.object, event.at);
    if (event.kind == Event::Kind::arrival && !network.message(event.object).is_answer) return event.at * 1e-3;
  }
  return 0;
}

/// The time of the push alone, with the headers of its packets.
double alone_us() { return arrival_us(cluster(0), 0); }

TEST(PredictWindows, WithoutAQueueDirectionsAreIndependent) {
  EXPECT_GT(alone_us(), kBytes * 1e-3);
  EXPECT_DOUBLE_EQ(arrival_us(cluster(0), 3), alone_us());
}

TEST(PredictWindows, AcknowledgmentsWaitBehindThreeAnswers) {
  // Four connections have a window of 0.925 * 64 KiB each. Three of them fill the queue of the shard's sending side.
  EXPECT_DOUBLE_EQ(arrival_us(cluster(256), 0), alone_us());
  EXPECT_DOUBLE_EQ(arrival_us(cluster(256), 1), alone_us());
  EXPECT_NEAR(arrival_us(cluster(256), 3), 3 * alone_us(), 1e-6);
}

TEST(PredictWindows, WhatFitsIntoTheWindowDoesNotWait) {
  EXPECT_DOUBLE_EQ(arrival_us(cluster(8192), 3), alone_us());
  EXPECT_NEAR(arrival_us(cluster(256), 3, 50'000), arrival_us(cluster(0), 0, 50'000), 1e-6);
}

TEST(PredictWindows, AShallowQueueDelaysNoAcknowledgments) {
  Cluster far = cluster(16);
  far.rtt_us = 600;  // 600,000 bytes are on their way, and three windows have less
  EXPECT_NEAR(arrival_us(far, 3), alone_us() + 300, 1e-6);
}

TEST(PredictWindows, TheBytesOnTheirWayBelongToTheWindows) {
  Cluster far = cluster(1024);
  far.rtt_us = 600;
  // Three windows are more than what is on its way: 0.925 * (1 MiB + 600,000 bytes) * 3 / 4.
  EXPECT_NEAR(arrival_us(far, 3, 2e6), 3 * arrival_us(cluster(0), 0, 2e6) + 300, 1e-6);
}

TEST(PredictWindows, BbrFillsNoQueue) {
  Cluster far = cluster(256);
  far.rtt_us = 6000;
  EXPECT_NEAR(arrival_us(far, 3), alone_us() + 3000, 1e-6);
}

}  // namespace
}  // namespace gradrail::bench::predict
