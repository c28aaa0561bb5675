#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "absl/status/statusor.h"
#include "transport/capabilities.h"
#include "transport/registry.h"

namespace gradrail::transport::ucx {

/// UCX's context and its one worker. Move-only; ends both.
class Worker {
 public:
  /// Errors  UNAVAILABLE, RESOURCE_EXHAUSTED: UCX cannot be used here and why, for people.
  static absl::StatusOr<Worker> open(const OpenOptions& options);
  Worker(Worker&& other) noexcept;
  Worker& operator=(Worker&&) = delete;
  ~Worker();

  ucp_context_h context() const { return context_; }
  ucp_worker_h get() const { return worker_; }
  /// Readable when there is progress to make, once armed.
  int event_fd() const { return event_fd_; }
  absl::StatusOr<std::string> address() const;
  const GpuTransferSupport& gpu() const { return gpu_; }
  /// Whether an RDMA device is among what UCX uses.
  bool rdma() const { return rdma_; }
  /// Leaves both to the end of the process.
  void leak() {
    worker_ = nullptr;
    context_ = nullptr;
  }

 private:
  explicit Worker(ucp_context_h context) : context_(context) {}
  absl::Status create_worker();

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  GpuTransferSupport gpu_;
  bool rdma_ = false;
};

}  // namespace gradrail::transport::ucx
