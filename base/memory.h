#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "gradrail/memory_span.h"

namespace gradrail {

/// Zeroed host memory behind a sealed memfd: any transport can register it, and shm can pass it to another process.
/// Its size is sealed, so that no peer can make a reader fault by shrinking it. Where the system forbids
/// memfd_create(), the memory has no file: shm then refuses itself, and all other transports can register it.
class SharedMemory {
 public:
  /// Creates the memory.
  /// Errors  RESOURCE_EXHAUSTED: the kernel refused memory or a descriptor; the message names the limit.
  static absl::StatusOr<SharedMemory> create(const std::string& name, size_t bytes);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const { return span_.data; }
  size_t bytes() const { return span_.bytes; }
  MemorySpan span() const { return span_; }

 private:
  MemorySpan span_;
};

}  // namespace gradrail
