#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace gradrail {

class GpuMemorySource;

enum class MemoryKind { host, cuda };

/// A run of memory as a transport needs to know it. `fd` names the file behind the memory when other processes on this
/// host may map it (SharedMemory), else -1. `gpu` belongs to memory of kind cuda and outlives its registrations.
struct MemorySpan {
  std::byte* data = nullptr;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::host;
  int fd = -1;
  const GpuMemorySource* gpu = nullptr;
};

/// Told of memory that nobody has touched yet: the moment to say on which NUMA node it shall lie. May be empty.
using MemoryPlacer = std::function<void(const MemorySpan&)>;

/// Zeroed host memory behind a sealed memfd: any transport can register it, and shm can pass it to another process.
/// Its size is sealed, so that no peer can make a reader fault by shrinking it.
class SharedMemory {
 public:
  /// Errors  RESOURCE_EXHAUSTED: the kernel refused memory or a descriptor; the message says which limit.
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
