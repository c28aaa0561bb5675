#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gradrail::bench {

/// One of two ends that write into each other's memory. bench/put and its bare peers share it, so that all of them run
/// the same loops (bench/put/loops.h).
/// Threads  One.
class PutEnd {
 public:
  /// Source and target are so many slots of the largest size: windows take them by turns.
  static constexpr size_t kSlots = 2;
  /// Immediates that one poll can bring.
  static constexpr size_t kBatch = 16;

  virtual ~PutEnd() = default;

  /// The carrier of the bytes, for people.
  virtual std::string path() const = 0;
  virtual std::byte* source(size_t slot) = 0;
  virtual const std::byte* target(size_t slot) const = 0;

  /// Starts writing the first `bytes` of a slot of the source into the same slot of the peer's target. False: full,
  /// poll first. Puts become visible in the order posted, not later than the immediate of a later one arrives.
  virtual absl::StatusOr<bool> try_put(size_t slot, size_t bytes, std::optional<uint32_t> immediate) = 0;
  /// Makes progress and returns the immediates that arrived. `arrived` has room for kBatch.
  virtual absl::StatusOr<size_t> poll(absl::Span<uint32_t> arrived) = 0;
};

}  // namespace gradrail::bench
