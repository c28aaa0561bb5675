#pragma once

#include <cstddef>

namespace gradrail::transport {

enum class GpuMemory { none, staged, direct };

/// What a transport can do, asked before anything is opened over it.
struct Capabilities {
  bool one_sided = true;  ///< puts land without the peer's processor copying them out of a message
  GpuMemory gpu_memory = GpuMemory::none;
  bool direct_map = false;      ///< Connection::map gives a pointer into the peer's memory
  bool ordered_puts = true;     ///< an arrival notice follows all earlier puts of its connection (else emulated)
  bool wait_by_fd = true;       ///< Context::wait_fd becomes readable when there is something to poll
  size_t max_inline_bytes = 0;  ///< puts up to this size need no registered source
  size_t max_message_bytes = 0;
  int immediate_bits = 64;  ///< low bits of the immediate that arrive
};

}  // namespace gradrail::transport
