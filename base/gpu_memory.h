#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"

namespace gradrail {

/// How the driver of a network device comes to the memory of a GPU.
enum class NicGpuTransfer : uint8_t {
  dma_buf,      ///< a descriptor that the GPU's driver exports and the network device's imports
  peer_memory,  ///< by its address, which a kernel module (nvidia-peermem) explains to RDMA drivers
};

/// "dmabuf" or "peermem": what --gpu-direct calls it.
inline const char* name_of(NicGpuTransfer way) { return way == NicGpuTransfer::dma_buf ? "dmabuf" : "peermem"; }

/// Device memory as the kernel hands it to other devices' drivers. The descriptor covers whole pages: the run begins
/// `offset` bytes behind its start. To be closed, by ending this, as soon as a registration has returned: the
/// registration holds the memory itself.
struct DmaBuf {
  FileDescriptor fd;
  size_t offset = 0;
  size_t bytes = 0;  ///< of the whole pages
};

/// Operations that a transport needs on memory of a GPU. It is an interface, because transports do not depend on gpu/.
/// Threads  Owner of the memory's device.
class GpuMemorySource {
 public:
  virtual ~GpuMemorySource() = default;
  GpuMemorySource(const GpuMemorySource&) = delete;
  GpuMemorySource& operator=(const GpuMemorySource&) = delete;

  int ordinal() const { return ordinal_; }     ///< as the driver counts in this process
  NicGpuTransfer way() const { return way_; }  ///< the one that transports shall use and no other

  /// For way() dma_buf: anew for each registration.
  virtual absl::StatusOr<DmaBuf> export_dma_buf(const void* data, size_t bytes) const = 0;

 protected:
  GpuMemorySource(int ordinal, NicGpuTransfer way) : ordinal_(ordinal), way_(way) {}

 private:
  const int ordinal_;
  const NicGpuTransfer way_;
};

}  // namespace gradrail
