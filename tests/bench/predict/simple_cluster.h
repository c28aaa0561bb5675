#pragma once

#include <cmath>

#include "bench/predict/description.h"
#include "bench/predict/simulation.h"
#include "gtest/gtest.h"
#include "ps/protocol/exchange_layout.h"

namespace gradrail::bench::predict {

inline constexpr double kPayload = 1500 - 52;
inline constexpr double kHeaders = 38 + 52;

/// Seconds of a bucket on a link of 8 Gbit/s.
inline double seconds_of(double payload_bytes, double header_bytes) {
  const double bytes = payload_bytes + header_bytes + 96;
  return (bytes + std::ceil(bytes / kPayload) * kHeaders) * 1e-9;
}
/// Of the packets of such a bucket: one for two.
inline double acknowledgment_s(double payload_bytes) {
  return std::ceil(payload_bytes / kPayload) / 2 * kHeaders * 1e-9;
}
inline double push_s(double bytes) { return seconds_of(bytes, sizeof(ps::SlotHeader)); }
inline double return_s(double bytes) { return seconds_of(bytes, sizeof(ps::ReturnHeader)); }

/// One bucket of 1 MiB over 8 Gbit/s, without costs of threads and delays.
inline Description simple() {
  Description d;
  d.cluster.workers = 1;
  d.cluster.nic_gbit = 8;
  d.cluster.rtt_us = 0;
  d.costs = {.message_us = 0,
             .send_ns_per_byte = 0,
             .receive_ns_per_byte = 0,
             .apply_us = 0,
             .apply_ns_per_byte = 0,
             .gradient_ns_per_byte = 0,
             .memory_gb_per_s = 1e9,
             .sources = {}};
  d.load.bytes = 1 << 20;
  return d;
}

inline Outcome outcome_of(const Description& d) {
  const absl::StatusOr<Outcome> outcome = simulate(d);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  return outcome.value_or(Outcome{});
}

}  // namespace gradrail::bench::predict
