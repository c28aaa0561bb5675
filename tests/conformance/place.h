#pragma once

#include <memory>
#include <vector>

#include "base/gpu_memory.h"
#include "conformance/side.h"
#include "gpu/compute/compute.h"

namespace gradrail::conformance {

enum class Where { host, gpu };

/// The way of GPU memory that GRADRAIL_TEST_GPU_DIRECT names: "dmabuf", else peer memory.
NicGpuTransfer tested_transfer();

/// Registered memory of the host or of a simulated GPU, that is filled and looked at by the driver's copies alone.
class Place {
 public:
  /// Throws Broken.
  Place(Side& side, Where where, size_t bytes, transport::Access access);
  ~Place();

  void fill(size_t offset, size_t bytes, uint64_t seed);
  std::vector<std::byte> read(size_t offset, size_t bytes) const;

  LocalSlice slice(size_t offset, size_t bytes) const { return {region_.get(), offset, bytes}; }
  const std::string& key() const { return region_->key(); }
  MemorySpan span() const { return span_; }
  void end_registration() { region_.reset(); }

 private:
  // Order of destruction: the registration, the memory, the device.
  std::unique_ptr<gpu::Compute> compute_;  ///< null for the host
  std::unique_ptr<GpuMemorySource> source_;
  SharedMemory host_;
  std::unique_ptr<gpu::Memory> device_;
  MemorySpan span_;
  std::unique_ptr<MemoryRegion> region_;
};

}  // namespace gradrail::conformance
