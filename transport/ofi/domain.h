#pragma once

#include <rdma/fi_domain.h>

#include <memory>

#include "absl/status/statusor.h"
#include "base/gpu_memory.h"
#include "base/memory.h"
#include "transport/memory_region.h"
#include "transport/ofi/handle.h"
#include "transport/ofi/provider.h"

namespace gradrail::transport::ofi {

/// Memory registered in one domain. `mr` is empty when the provider needs none: local memory of a provider that copies.
struct Registration {
  Handle<fid_mr> mr;
  void* descriptor = nullptr;  ///< descriptor for local use
  uint64_t key = 0;            ///< key for peers
  uint64_t base = 0;           ///< begin of the region for peers
};

/// A protection domain: only endpoints of this domain can access memory that is registered here. libfabric's auth_key
/// is not used: verbs, efa, tcp and shm take none (auth_key_size 0). psm2 and psm3 take a job's UUID of 16 bytes, also
/// from FI_PSM2_UUID or FI_PSM3_UUID; cxi takes a VNI from the launcher. A key set in these ways is effective. A key of
/// our own would need a secret of the job, which the control plane does not have yet.
class Domain {
 public:
  static absl::StatusOr<std::unique_ptr<Domain>> open(const Provider& provider, fid_fabric* fabric);

  /// Registers `memory` for local use, and for peers as far as `access` allows.
  /// Errors  RESOURCE_EXHAUSTED: the text names the limit. FAILED_PRECONDITION: this device does not reach that GPU's
  ///         memory.
  absl::StatusOr<Registration> add(MemorySpan memory, Access access);
  /// Buffers of small messages.
  absl::StatusOr<Registration> add_messages(MemorySpan memory);

  fid_domain* fid() const { return domain_.get(); }
  const Provider& provider() const { return provider_; }
  /// Sets the only endpoint of this domain, for providers that bind regions to endpoints.
  void set_endpoint(fid_ep* endpoint) { endpoint_ = endpoint; }

 private:
  Domain(const Provider& provider, Handle<fid_domain> domain) : provider_(provider), domain_(std::move(domain)) {}
  absl::StatusOr<Registration> register_with(MemorySpan memory, uint64_t flags);
  absl::StatusOr<fid_mr*> try_register(MemorySpan memory, uint64_t flags);
  int register_gpu(const MemorySpan& memory, const DmaBuf* dma_buf, uint64_t flags, uint64_t key, fid_mr** mr);

  const Provider& provider_;
  const Handle<fid_domain> domain_;
  fid_ep* endpoint_ = nullptr;
};

}  // namespace gradrail::transport::ofi
