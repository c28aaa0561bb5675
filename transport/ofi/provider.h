#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "transport/capabilities.h"
#include "transport/ofi/handle.h"
#include "transport/registry.h"

namespace gradrail::transport::ofi {

/// Reason why a provider that has FI_HMEM takes no GPU memory.
inline constexpr char kWouldCopy[] =
    "moves host memory only: libfabric's provider {} would copy GPU memory through the host";

/// A way of libfabric to reach peers, and its requirements.
struct Provider {
  std::string name;    ///< "verbs;ofi_rxm"
  std::string device;  ///< "rxe0"
  bool rdma = false;
  /// FI_EP_MSG: each endpoint has its own connection, otherwise any endpoint reaches any other.
  bool connects = false;
  bool ordered = false;            ///< writes land in the order posted; else they are made to by waiting for each
  bool needs_descriptors = false;  ///< FI_MR_LOCAL: local memory is registered too
  bool virtual_addresses = false;  ///< FI_MR_VIRT_ADDR: remote addresses are those of the peer's process
  bool chooses_keys = false;       ///< FI_MR_PROV_KEY: keys are few and can be guessed, only domains protect
  /// An endpoint must not be closed while data may still arrive: libfabric 1.17 crashes. Peers of shm in one process
  /// read each other's endpoints. In ofi_rxm a late message returns its buffer to an endpoint that is already closed.
  bool lingers = false;
  /// A notice must not travel with bytes. The tcp provider 1.17 may close an endpoint in the middle of such a write;
  /// ofi_rxm then interprets data as a pointer.
  bool separate_notices = false;
  /// A write is done when the peer's side has confirmed it. This serves providers that do not order writes, and those
  /// that report a write as done although the peer refused it.
  bool confirms_writes = false;
  bool notices_take_receives = false;  ///< FI_RX_CQ_DATA
  bool binds_regions = false;          ///< FI_MR_ENDPOINT: a region belongs to one endpoint
  uint64_t key_mask = UINT64_MAX;      ///< bits of a key that we may choose
  int immediate_bits = 0;
  size_t piece_bytes = 0;  ///< longest single write or read
  size_t pieces_in_flight = 0;
  bool device_memory = false;  ///< FI_HMEM was granted
  GpuTransferSupport gpu;
  Info info;

  /// Whether it may be used in this process, which is not a child of one that has used RDMA devices: libfabric keeps
  /// them open, and they are its parent's.
  bool may_be_used_here() const;
};

/// Sets variables that libfabric reads from the environment at its first use, where the user has not set them. They set
/// queues and buffers for endpoints with one peer each (provider.cc).
/// FI_UNIVERSE_SIZE sets the size of completion queues; soft-RoCE's limit is 32,767 entries.
/// FI_HMEM_CUDA_USE_DMABUF=0: libfabric 2 would create another dma-buf for memory registered by address.
/// FI_MR_CACHE_MONITOR=disabled: the verbs provider's cache opens every region to remote writes and keeps it open after
/// its end.
void prepare_environment();

/// The best provider that has the features this transport needs. It is on the device with the address bind_host where
/// that names one, or the provider that the options name. With FI_HMEM where the provider has it and the host has a
/// GPU.
/// Errors  UNAVAILABLE: none; the message lists the available ones.
absl::StatusOr<Provider> choose_provider(const OpenOptions& options);

/// Rank of providers that are used only when requested by name.
inline constexpr int kOnlyByName = 100;
/// Rank of a provider: smaller is better; RDMA providers precede all others.
int provider_rank(std::string_view name);
bool is_rdma_provider(std::string_view name);
/// Whether the provider `name` answers to what the user wrote: "tcp" means "tcp;ofi_rxm" too.
bool provider_matches(std::string_view name, std::string_view wanted);

}  // namespace gradrail::transport::ofi
