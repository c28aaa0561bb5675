#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/gpu_memory.h"
#include "base/memory.h"

namespace gradrail::transport {

/// The ways in which an open Context takes memory of GPUs (MemoryKind::cuda). Each field is empty when the way works,
/// else it is the reason against it. Peers access such registered memory as they access host memory. An open way may
/// still fail with a GPU, a device or a kernel that does not support it. Registration then reports an error, and only a
/// transfer proves the rest.
struct GpuTransferSupport {
  std::string why_no_dma_buf = "moves host memory only";  ///< text for people; follows the transport's name
  std::string why_no_peer_memory = why_no_dma_buf;

  static GpuTransferSupport none(const std::string& why) { return {why, why}; }
  const std::string& why_not(NicGpuTransfer way) const {
    return way == NicGpuTransfer::dma_buf ? why_no_dma_buf : why_no_peer_memory;
  }
  bool takes(NicGpuTransfer way) const { return why_not(way).empty(); }
};

/// Features of an open Context.
struct Capabilities {
  bool one_sided = true;  ///< puts land without the peer's processor copying them out of a message
  GpuTransferSupport gpu;
  bool direct_map = false;      ///< Connection::map gives a pointer into the peer's memory
  bool ordered_puts = true;     ///< an arrival notice follows all earlier puts of its connection (else emulated)
  bool wait_by_fd = true;       ///< Context::wait_fd becomes readable when there is something to poll
  size_t max_inline_bytes = 0;  ///< puts up to this size need no registered source
  size_t max_message_bytes = 0;
  int immediate_bits = 64;  ///< low bits of the immediate that arrive
};

/// Whether a transport that takes GPU memory in these ways may access this memory.
/// Errors  INVALID_ARGUMENT: memory of a GPU without its source, or in a way that is closed; the text names the remedy.
absl::Status check_memory(std::string_view transport, const MemorySpan& memory, const GpuTransferSupport& ways = {});

}  // namespace gradrail::transport
