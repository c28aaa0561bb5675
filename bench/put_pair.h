#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "bench/put_end.h"
#include "bench/put_link.h"
#include "bench/put_loops.h"

namespace gradrail::bench {

/// Two ends, connected, and the socket over which the one that leads tells the other what comes next.
class PutPair {
 public:
  PutPair(PairLink& link, PutEnd& end) : link_(link), end_(end) {}

  /// The one that leads. `what`: "latency" or "bandwidth". What both found wrong is in the figure.
  absl::StatusOr<PutFigure> lead(const std::string& what, const PutLoad& load);
  absl::Status end();

  /// The other, until end().
  absl::Status answer();

  /// Puts of one window: as many as asked for, but no more than a few megabytes, since a slow network must not take the
  /// whole time for one.
  static uint32_t window_of(uint32_t wanted, uint64_t bytes);

 private:
  std::function<void()> meanwhile();

  PairLink& link_;
  PutEnd& end_;
};

}  // namespace gradrail::bench
