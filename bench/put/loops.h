#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "bench/driver/patience.h"
#include "bench/put/end.h"
#include "bench/report/figure.h"

namespace gradrail::bench {

struct PutFigure {
  Times times;         ///< times of turns, or windows
  uint64_t wrong = 0;  ///< arrivals with wrong bytes
};

struct PutLoad {
  size_t bytes = 0;     ///< size of one put, at least 8
  uint32_t window = 1;  ///< bandwidth: puts between two notices
  double seconds = 0;
  uint64_t iterations = 0;       ///< 0: as many as fill `seconds`
  uint64_t warmup = 0;           ///< 0: a tenth of that
  Patience* patience = nullptr;  ///< receives the turns that end; null: no other process waits
};

/// Ping-pong of puts with an immediate, for about `seconds` after a warm-up of a tenth. Figures are half round trips.
absl::StatusOr<PutFigure> lead_latency(PutEnd& end, const PutLoad& load);
/// The other end of it; returns what it found wrong.
absl::StatusOr<uint64_t> answer_latency(PutEnd& end, const PutLoad& load);

/// Windows of puts, the last of each with an immediate that the other end answers with a put of no bytes. Two windows
/// are under way. Figures are times between two answers: one window's.
absl::StatusOr<PutFigure> lead_bandwidth(PutEnd& end, const PutLoad& load);
absl::StatusOr<uint64_t> answer_bandwidth(PutEnd& end, const PutLoad& load);

/// Leads a measurement of bandwidth with windows of both ends at the same time. Figures are times between two windows
/// of either direction at the leader. The bytes of one window divided by the time are therefore the bandwidth of both
/// directions.
absl::StatusOr<PutFigure> lead_both_ways(PutEnd& end, const PutLoad& load);
absl::StatusOr<uint64_t> answer_both_ways(PutEnd& end, const PutLoad& load);

}  // namespace gradrail::bench
