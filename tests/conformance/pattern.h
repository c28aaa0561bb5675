#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace gradrail::conformance {

/// Fills with bytes that differ for every seed and every place: shifted, stale or torn data is never equal.
void fill_pattern(absl::Span<std::byte> bytes, uint64_t seed);
/// Index of the first byte that is not the pattern's; bytes.size() when all are.
size_t first_difference(absl::Span<const std::byte> bytes, uint64_t seed);
inline bool has_pattern(absl::Span<const std::byte> bytes, uint64_t seed) {
  return first_difference(bytes, seed) == bytes.size();
}
bool all_equal(absl::Span<const std::byte> bytes, std::byte value);

}  // namespace gradrail::conformance
