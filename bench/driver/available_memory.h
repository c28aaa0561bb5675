#pragma once

#include <cstdint>
#include <optional>

namespace gradrail::bench {

/// The bytes of this host's memory that processes can still take without swapping. nullopt: the kernel does not say it.
/// Source  MemAvailable in /proc/meminfo, proc(5).
std::optional<uint64_t> available_memory();

}  // namespace gradrail::bench
