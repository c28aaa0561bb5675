#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "bench/put/end.h"
#include "bench/put/link.h"
#include "gradrail/memory_span.h"
#include "transport/context.h"

namespace gradrail::bench {

/// Memory of one end: the slots of its source, then those of its target.
class PutMemory {
 public:
  virtual ~PutMemory() = default;
  /// The memory that a transport registers.
  virtual MemorySpan span() const = 0;
  /// Bytes at the host: the memory itself, or a copy.
  virtual std::byte* host() = 0;
  /// Copies all bytes from host() to the memory, and back. The default is for memory that is its own copy.
  virtual absl::Status upload() { return absl::OkStatus(); }
  virtual absl::Status download() { return absl::OkStatus(); }
};

/// Makes memory of so many bytes for an open context.
using MakePutMemory =
    std::function<absl::StatusOr<std::unique_ptr<PutMemory>>(const transport::Context& context, size_t bytes)>;
absl::StatusOr<std::unique_ptr<PutMemory>> host_memory(const transport::Context& context, size_t bytes);

struct PutTransport {
  std::string name = "tcp";
  bool rdma_only = false;
  std::string ofi_provider;
  std::string bind_host;
  MakePutMemory memory = host_memory;
};

/// Opens the transport and connects its two ends over `link`; `bytes` is the size of a slot.
absl::StatusOr<std::unique_ptr<PutEnd>> open_transport_end(const PutTransport& transport, PairLink& link, size_t bytes);

/// A path over which puts have arrived.
struct ProvenPath {
  std::string path;
  bool rdma = false;
};

/// Forks. Each of the two processes puts a pattern of `bytes` bytes into the memory of the other, which compares all
/// bytes.
/// Errors  Those of the transport and its memory, of the process that failed. DATA_LOSS: the first byte that differs.
///         DEADLINE_EXCEEDED.
/// Threads  Only the caller's may run, and no transport may be open.
absl::StatusOr<ProvenPath> prove_puts(const PutTransport& transport, size_t bytes);

/// Byte `i` of the pattern of `seed`. It differs from its neighbors, and two seeds differ in each byte.
std::byte pattern_byte(uint32_t seed, size_t i);

}  // namespace gradrail::bench
