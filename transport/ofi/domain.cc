#include "transport/ofi/domain.h"

#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <optional>
#include <utility>

#include "base/random_bits.h"
#include "base/status.h"
#include "transport/ofi/gpu/dma_buf.h"
#include "transport/ofi/native_error.h"

namespace gradrail::transport::ofi {
namespace {

/// Two random keys of 64 bits are never the same; a provider with short keys may need a few attempts.
constexpr int kKeyAttempts = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<Domain>> Domain::open(const Provider& provider, fid_fabric* fabric) {
  fid_domain* domain = nullptr;
  const int error = fi_domain(fabric, provider.info.get(), &domain, nullptr);
  if (error != 0) return native_error("open domain " + provider.device, -error);
  return std::unique_ptr<Domain>(new Domain(provider, Handle<fid_domain>(domain)));
}

absl::StatusOr<Registration> Domain::add(MemorySpan memory, Access access) {
  const bool gpu = memory.kind == MemoryKind::cuda;
  // GPU memory always needs a registration: its descriptor states the kind of the address.
  uint64_t flags = provider_.needs_descriptors || gpu ? FI_READ | FI_WRITE : 0;
  if (allows(access, Access::remote_read)) flags |= FI_REMOTE_READ;
  if (allows(access, Access::remote_write)) flags |= FI_REMOTE_WRITE;
  return register_with(memory, flags);
}

absl::StatusOr<Registration> Domain::add_messages(MemorySpan memory) {
  return register_with(memory, provider_.needs_descriptors ? FI_SEND | FI_RECV : 0);
}

int Domain::register_gpu(const MemorySpan& memory, const DmaBuf* dma_buf, uint64_t flags, uint64_t key, fid_mr** mr) {
  if (dma_buf != nullptr) return register_dma_buf(domain_.get(), *dma_buf, memory, flags, key, mr);
  const iovec where = {memory.data, memory.bytes};
  fi_mr_attr attributes{};
  attributes.mr_iov = &where;
  attributes.iov_count = 1;
  attributes.access = flags;
  attributes.requested_key = key;
  attributes.iface = FI_HMEM_CUDA;
  attributes.device.cuda = memory.gpu->ordinal();
  return fi_mr_regattr(domain_.get(), &attributes, 0, mr);
}

absl::StatusOr<fid_mr*> Domain::try_register(MemorySpan memory, uint64_t flags) {
  const bool gpu = memory.kind == MemoryKind::cuda;
  std::optional<DmaBuf> dma_buf;  // valid until the registration has returned, which then holds the memory itself
  if (gpu && memory.gpu->way() == NicGpuTransfer::dma_buf) {
    GRADRAIL_ASSIGN_OR_RETURN(dma_buf, memory.gpu->export_dma_buf(memory.data, memory.bytes));
  }
  int error = 0;
  for (int attempt = 0; attempt < kKeyAttempts; ++attempt) {
    // The provider ignores the requested key with FI_MR_PROV_KEY.
    const uint64_t key = provider_.chooses_keys ? 0 : random_bits() & provider_.key_mask;
    fid_mr* mr = nullptr;
    error = gpu ? register_gpu(memory, dma_buf ? &*dma_buf : nullptr, flags, key, &mr)
                : fi_mr_reg(domain_.get(), memory.data, memory.bytes, flags, 0, key, 0, &mr, nullptr);
    if (error == 0) return mr;
    // FI_ENOKEY: the key is in use in this domain.
    if (error != -FI_ENOKEY) break;
  }
  return gpu ? gpu_registration_error(memory, provider_.device, -error) : registration_error(memory.bytes, -error);
}

absl::StatusOr<Registration> Domain::register_with(MemorySpan memory, uint64_t flags) {
  Registration made;
  if (flags == 0 || memory.bytes == 0) return made;
  GRADRAIL_ASSIGN_OR_RETURN(fid_mr* const mr, try_register(memory, flags));
  made.mr.reset(mr);
  if (provider_.binds_regions) {
    // FI_MR_ENDPOINT: a region is usable after it is bound and enabled (fi_mr(3)).
    int error = fi_mr_bind(mr, &endpoint_->fid, 0);
    if (error == 0) error = fi_mr_enable(mr);
    if (error != 0) return native_error("bind memory to its endpoint", -error);
  }
  made.descriptor = fi_mr_desc(mr);
  made.key = fi_mr_key(mr);
  // Remote addresses count from the start of the region without FI_MR_VIRT_ADDR.
  made.base = provider_.virtual_addresses ? reinterpret_cast<uint64_t>(memory.data) : 0;
  return made;
}

}  // namespace gradrail::transport::ofi
