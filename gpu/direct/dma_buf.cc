#include "gpu/direct/dma_buf.h"

#include <unistd.h>

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/device_compute.h"
#include "gpu/compute/device_memory.h"
#include "gpu/direct/peer_memory.h"

namespace gradrail::gpu {
namespace {

absl::StatusOr<DeviceCompute*> dma_buf_device(Compute& compute) {
  if (auto* device = dynamic_cast<DeviceCompute*>(&compute)) return device;
  return absl::FailedPreconditionError("memory of the host needs no dma-buf: it is registered as it is");
}

absl::Status check_support(const PrimaryContext& context) {
  if (context.device().dma_buf) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "{} does not support dma-buf: it requires a driver for CUDA 11.7, NVIDIA's open kernel module and Linux 5.12",
      context.label()));
}

/// Reading back over the NIC would do, too; but these GPUs are old, and what is staged is right at any age.
absl::Status cannot_flush(const PrimaryContext& context) {
  return absl::FailedPreconditionError(fmt::format(
      "{} does not order what network devices write, and its driver cannot flush it (CUDA 11.3)", context.label()));
}

class Source final : public GpuMemorySource {
 public:
  Source(Compute& compute, int ordinal, NicGpuTransfer way) : GpuMemorySource(ordinal, way), compute_(compute) {}
  absl::StatusOr<DmaBuf> export_dma_buf(const void* data, size_t bytes) const override {
    return gpu::export_dma_buf(compute_, data, bytes);
  }

 private:
  Compute& compute_;
};

}  // namespace

absl::StatusOr<DmaBuf> export_dma_buf(Compute& compute, const void* data, size_t bytes) {
  GRADRAIL_ASSIGN_OR_RETURN(DeviceCompute* const device, dma_buf_device(compute));
  const PrimaryContext& context = *device->context();
  GRADRAIL_RETURN_IF_ERROR(check_support(context));
  context.make_current();
  // CUDA exports whole pages of the host's size: the offset in the result leads to the run.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const cuda::DevicePointer address = address_of(data), begin = address / page * page;
  const size_t whole = (address + bytes - begin + page - 1) / page * page;
  int fd = -1;
  const cuda::Result result =
      context.api().cuMemGetHandleForAddressRange(&fd, begin, whole, cuda::kRangeHandleDmaBufFd, 0);
  if (result == cuda::kSuccess) return DmaBuf{FileDescriptor(fd), address - begin, whole};
  absl::Status status = context.status(result, fmt::format("a dma-buf of {} bytes", bytes));
  // CUDA's answer to an address that is not device memory: a mistake of the caller.
  if (result == cuda::kInvalidValue) return absl::InvalidArgumentError(status.message());
  // All other refusals lead to staging. Only a lost device must end the worker.
  return absl::IsUnavailable(status) ? status : absl::FailedPreconditionError(status.message());
}

absl::Status prepare_for_peers(Compute& compute, const void* data) {
  GRADRAIL_ASSIGN_OR_RETURN(DeviceCompute* const device, dma_buf_device(compute));
  const PrimaryContext& context = *device->context();
  context.make_current();
  // GPUDirect RDMA requires it: a copy of this memory has ended when its call returns.
  const unsigned on = 1;
  return context.status(context.api().cuPointerSetAttribute(&on, cuda::kPointerAttributeSyncMemops, address_of(data)),
                        "preparing memory for NICs");
}

absl::StatusOr<std::unique_ptr<GpuMemorySource>> source_for_nics(Compute& compute, NicGpuTransfer way) {
  GRADRAIL_ASSIGN_OR_RETURN(DeviceCompute* const device, dma_buf_device(compute));
  const PrimaryContext& context = *device->context();
  if (!context.device().gpu_direct_rdma) {
    return absl::FailedPreconditionError(
        fmt::format("{} does not support GPUDirect RDMA: network devices can access the memory of data-centre and "
                    "workstation GPUs only",
                    context.label()));
  }
  if (context.device().writes_flush == WritesFlush::read_back) return cannot_flush(context);
  const absl::Status supported =
      way == NicGpuTransfer::dma_buf ? check_support(context) : peer_memory_module().status();
  if (!supported.ok()) return supported;
  // Nothing is exported yet: the transport does it for each region (base/gpu_memory.h).
  return std::make_unique<Source>(compute, context.device().ordinal, way);
}

bool needs_flush(Compute& compute) {
  const absl::StatusOr<DeviceCompute*> device = dma_buf_device(compute);
  return device.ok() && (*device)->context()->device().writes_flush != WritesFlush::none;
}

absl::Status flush_nic_writes(Compute& compute) {
  const absl::StatusOr<DeviceCompute*> device = dma_buf_device(compute);
  // Host memory is coherent with network devices: nothing to flush.
  if (!device.ok()) return absl::OkStatus();
  const PrimaryContext& context = *(*device)->context();
  if (context.device().writes_flush == WritesFlush::none) return absl::OkStatus();
  if (context.device().writes_flush == WritesFlush::read_back) return cannot_flush(context);
  context.make_current();
  // The flush is for all devices: CUDA ignores a flush for a reader that its ordering includes already.
  return context.status(
      context.api().cuFlushGPUDirectRDMAWrites(cuda::kFlushWritesTargetCurrentContext, cuda::kFlushWritesToAllDevices),
      "making visible what a network device wrote");
}

}  // namespace gradrail::gpu
