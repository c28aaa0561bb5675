#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/driver/driver.h"

namespace gradrail::gpu {

/// Action that makes bytes written by a NIC into GPU memory visible to kernels.
enum class WritesFlush : uint8_t {
  none,       ///< nothing: the device orders them (device.cc)
  by_host,    ///< cuFlushGPUDirectRDMAWrites after they arrived
  read_back,  ///< a small read over the same path, where the device offers neither
};

/// Description of a GPU by the driver.
struct DeviceInfo {
  int ordinal = 0;  ///< number of the driver, CUDA_VISIBLE_DEVICES respected
  cuda::Device handle = 0;
  std::string name;         ///< "NVIDIA H200"
  std::string pci_address;  ///< "0000:19:00.0", as the kernel and topology/ write it
  // Compute capability: 9 and 0 are sm_90. Module refuses devices below sm_80.
  int compute_major = 0;
  int compute_minor = 0;
  size_t memory_bytes = 0;
  int multiprocessors = 0;
  bool dma_buf = false;           ///< its memory can be exported as a dma-buf
  bool gpu_direct_rdma = false;   ///< NICs may reach its memory, by dma-buf or a peer-memory module
  bool pinned_addresses = false;  ///< kernels may use the host's address of pinned host memory
  bool stream_writes = false;     ///< its streams can write a number into pinned host memory
  bool graphs = false;            ///< its driver records operations, and starts all of them by one call
  // The safe value: it forbids NICs to write into this memory.
  WritesFlush writes_flush = WritesFlush::read_back;

  /// "GPU 0 (NVIDIA H200, 0000:19:00.0)".
  std::string label() const;
};

/// Errors  UNAVAILABLE: a device that does not answer.
absl::StatusOr<std::vector<DeviceInfo>> list_devices(const Driver& driver);

/// GPUs of this host in the order of the driver; empty if the driver finds none.
/// Errors  FAILED_PRECONDITION, UNAVAILABLE: reason why none can be used, from Driver::get().
absl::StatusOr<std::vector<DeviceInfo>> list_devices();

/// Finds the device.
/// Errors  NOT_FOUND: the text lists the devices of this host.
absl::StatusOr<DeviceInfo> find_device(const Driver& driver, int ordinal);

/// The ordinal of the GPU at a PCI address, however its letters are written and with or without the domain.
std::optional<int> ordinal_at(absl::Span<const DeviceInfo> devices, std::string_view pci_address);

/// A device's primary context, held; cuBLAS and NCCL use the same.
/// Threads  Any.
class PrimaryContext {
 public:
  /// Errors  Those of to_status().
  /// shared_ptr: SharedContext states the reason.
  static absl::StatusOr<std::shared_ptr<PrimaryContext>> retain(const Driver& driver, const DeviceInfo& device);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  const Driver& driver() const { return driver_; }
  const cuda::Functions& api() const { return driver_.api(); }
  const DeviceInfo& device() const { return device_; }
  const std::string& label() const { return label_; }

  /// Makes the context current for the calling thread. There is no result: on a context that was lost the next call
  /// fails as well, and that call has a status.
  void make_current() const { api().cuCtxSetCurrent(context_); }
  absl::Status status(cuda::Result result, std::string_view operation) const;

  /// A device that does not answer may block every call that frees its resources. From now on no resource is freed.
  void abandon() { abandoned_ = true; }
  bool is_abandoned() const { return abandoned_; }

 private:
  PrimaryContext(const Driver& driver, DeviceInfo device, cuda::Context context);

  const Driver& driver_;
  const DeviceInfo device_;
  const std::string label_;
  const cuda::Context context_;
  std::atomic<bool> abandoned_ = false;  ///< any thread
};

/// All objects on the device share it. It may outlive its creator: a Memory outlives its Compute, and both outlive the
/// caller's list.
using SharedContext = std::shared_ptr<PrimaryContext>;

}  // namespace gradrail::gpu
