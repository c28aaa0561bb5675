#pragma once

#include <cstdint>
#include <optional>

namespace gradrail::bench {

/// The work of the kernel for a shard over tcp: one thread receives `bytes` from one of `peers` sockets, and sends as
/// many back. Each peer is a process, which sends again when it has the answer. Returns the microseconds of the thread
/// on a core for each answer. nullopt: the host has not so many files or processes.
std::optional<double> echo_us(uint64_t bytes, uint32_t peers, double seconds);

}  // namespace gradrail::bench
