#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "gradrail/clock.h"

namespace gradrail::ps {

// An open connection proves little. The device may refuse a registration later, large packets may be lost on the way, a
// key may open other memory. A path is used only after a pattern has crossed it in each direction and was compared.

/// The time that both sides have to allocate, zero and map the memory of a connection, beside that of a small model.
/// The rate is that of a busy host: 2 GiB get half a minute, 1 MiB gets 16 ms.
inline Duration allocation_time(uint64_t bytes) {
  constexpr uint64_t kBytesPerMillisecond = 64 << 10;
  return std::chrono::milliseconds(bytes / kBytesPerMillisecond);
}

/// Seed of the pattern of a lane. A connection of several lanes checks one lane after the other: a notice gives no
/// information about the puts of other lanes. Each lane has its own seed, so that the bytes of the last one do not pass
/// for its own.
inline uint64_t check_seed_of_lane(uint64_t seed, uint32_t lane) { return seed + lane; }

/// Fills `target` with the pattern of a seed. The worker's seed is in its JoinPath; the shard's is check_answer_seed()
/// of it.
void fill_check(absl::Span<std::byte> target, uint64_t seed);
inline uint64_t check_answer_seed(uint64_t seed) { return ~seed; }

/// Returns "" when `arrived` is the pattern of the seed, else a text with the first difference.
std::string compare_check(absl::Span<const std::byte> arrived, uint64_t seed);

}  // namespace gradrail::ps
