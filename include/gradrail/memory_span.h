#pragma once

#include <cstddef>
#include <functional>

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

/// Receives memory before its first access, so that it can choose the NUMA node of its pages. May be empty.
using MemoryBinder = std::function<void(const MemorySpan&)>;

}  // namespace gradrail
