#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gradrail::bench::predict {

/// Reasons for which a step of a worker waits.
enum class Cause : uint8_t {
  compute,     ///< its own compute time
  stragglers,  ///< longer compute times of others
  worker_cpu,  ///< threads of workers: packing, sending, receiving
  worker_nic,  ///< a message crosses the NIC of a worker last
  shard_nic,   ///< … the NIC of a shard last
  shard,       ///< thread of a shard, or the memory of its host
  latency,     ///< delays of the network, grace windows
};
constexpr size_t kCauses = 7;

/// The critical path of a step: nanoseconds of each cause, from the begin of the step to a moment in it. The
/// path has the bucket with the last answer, the push that completed its update, and the waits of that push.
struct Trace {
  std::array<float, kCauses> ns{};

  void add(Cause cause, double duration) { ns[static_cast<size_t>(cause)] += static_cast<float>(duration); }
};

}  // namespace gradrail::bench::predict
