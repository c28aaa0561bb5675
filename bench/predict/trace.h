#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gradrail::bench::predict {

/// What a step of a worker waits for.
enum class Cause : uint8_t {
  compute,      ///< its own compute time
  stragglers,   ///< longer compute times of others
  worker_cpu,   ///< threads of workers: packing, sending, receiving
  worker_nic,   ///< a message crosses the NIC of a worker last
  fabric,       ///< … a link between switches last
  shard_nic,    ///< … the NIC of a shard last
  shard,        ///< thread of a shard, or the memory of its host
  latency,      ///< delays of the network, losses, grace windows
};
constexpr size_t kCauses = 8;

/// Nanoseconds of each cause from the begin of a worker's step to a moment in it, along the chain of events without
/// which that moment would not have come: the bucket with the last answer, the push that completed its update, and
/// what that push waited for. This is the critical path of the step.
struct Trace {
  std::array<float, kCauses> ns{};

  void add(Cause cause, double duration) { ns[static_cast<size_t>(cause)] += static_cast<float>(duration); }
};

}  // namespace gradrail::bench::predict
