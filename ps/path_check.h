#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace gradrail::ps {

// That a connection opened says little: a registration may be refused by the device later, large packets may be lost on
// the way, memory may be another's. A path is used only after a pattern went over it each way and was compared.

/// The pattern that a worker puts is of the seed in its Hello, the shard's of check_answer_seed().
void fill_check(absl::Span<std::byte> target, uint64_t seed);
inline uint64_t check_answer_seed(uint64_t seed) { return ~seed; }

/// "" when it is the pattern; else what is wrong, for people.
std::string compare_check(absl::Span<const std::byte> arrived, uint64_t seed);

}  // namespace gradrail::ps
