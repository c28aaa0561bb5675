#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "bench/put/end.h"
#include "bench/put/link.h"
#include "bench/put/loops.h"

namespace gradrail::bench {

/// Two ends, connected, and the socket over which the leader announces the next step.
class PutPair {
 public:
  PutPair(PairLink& link, PutEnd& end) : link_(link), end_(end) {}

  /// The one that leads. `what`: "latency", "bandwidth" or "both_ways". The figure has the errors that both found.
  absl::StatusOr<PutFigure> lead(const std::string& what, const PutLoad& load);
  absl::Status end();

  /// The other, until end().
  absl::Status answer();

  /// Number of puts of one window: at most `wanted`, at most a few megabytes. A slow network must not take the whole
  /// time for one.
  static uint32_t window_of(uint32_t wanted, uint64_t bytes);

 private:
  std::function<void()> meanwhile();

  PairLink& link_;
  PutEnd& end_;
};

}  // namespace gradrail::bench
