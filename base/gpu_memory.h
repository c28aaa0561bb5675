#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"

namespace gradrail {

/// Way in which the driver of a network device accesses the memory of a GPU.
enum class NicGpuTransfer : uint8_t {
  dma_buf,      ///< a descriptor that the GPU's driver exports and the network device's imports
  peer_memory,  ///< its address, which a kernel module (nvidia-peermem) translates for RDMA drivers
};

/// "dmabuf" or "peermem": what --gpu-direct calls it.
inline const char* name_of(NicGpuTransfer way) { return way == NicGpuTransfer::dma_buf ? "dmabuf" : "peermem"; }

/// Device memory in the form in which the kernel gives it to other devices' drivers. The descriptor covers whole pages:
/// the run begins `offset` bytes behind its start. The owner destroys this object, which closes it, as soon as a
/// registration has returned: the registration holds the memory itself.
struct DmaBuf {
  FileDescriptor fd;
  size_t offset = 0;
  size_t bytes = 0;  ///< size of the whole pages
};

/// Operations that a transport needs on memory of a GPU. It is an interface, because transports do not depend on gpu/.
/// Threads  Owner of the memory's device.
class GpuMemorySource {
 public:
  virtual ~GpuMemorySource() = default;
  GpuMemorySource(const GpuMemorySource&) = delete;
  GpuMemorySource& operator=(const GpuMemorySource&) = delete;

  int ordinal() const { return ordinal_; }     ///< number that the driver uses in this process
  NicGpuTransfer way() const { return way_; }  ///< the only way for transports

  /// Exports memory as a dma-buf, for way() dma_buf: once for each registration.
  virtual absl::StatusOr<DmaBuf> export_dma_buf(const void* data, size_t bytes) const = 0;

 protected:
  GpuMemorySource(int ordinal, NicGpuTransfer way) : ordinal_(ordinal), way_(way) {}

 private:
  const int ordinal_;
  const NicGpuTransfer way_;
};

}  // namespace gradrail
