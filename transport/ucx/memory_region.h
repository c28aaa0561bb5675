#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "transport/common/region_table.h"
#include "transport/memory_region.h"
#include "transport/ucx/device/worker.h"
#include "transport/ucx/wire.h"

namespace gradrail::transport::ucx {

/// Content of a key: the owner, the region, the proof that the holder may use it, its bounds, and whether a GPU holds
/// it. The key holds no device key: peers name regions. Only the owner's worker decides on access and moves the bytes.
struct RegionKey {
  uint64_t context = 0;
  uint32_t region = 0;
  uint64_t token = 0;
  uint64_t bytes = 0;
  Access access = Access::local;
  MemoryKind kind = MemoryKind::host;

  std::string encode() const;
  /// Errors  INVALID_ARGUMENT: not a key of this transport, or damaged.
  static absl::StatusOr<RegionKey> parse(std::string_view key);
};

class RegionTable;

class Region final : public MemoryRegion {
 public:
  Region(RegionTable& table, MemorySpan memory, Access access, ucp_mem_h handle);
  ~Region() override;

  /// UCX's registration; null for a region of no bytes.
  ucp_mem_h handle() const { return handle_; }
  bool on_gpu() const { return span().kind == MemoryKind::cuda; }
  /// Passed with every operation, so that UCX does not have to detect the kind of an address.
  ucs_memory_type_t memory_type() const { return on_gpu() ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST; }
  /// Starts to receive the data of an active message to `target`, which is in this region. UCX calls `done` with `user`
  /// if it returns a request.
  ucs_status_ptr_t receive(ucp_worker_h worker, void* message, std::byte* target, size_t bytes,
                           ucp_am_recv_data_nbx_callback_t done, void* user) const;

 private:
  friend class RegionTable;
  Region(RegionTable& table, MemorySpan memory, Access access, ucp_mem_h handle, const common::RegionId& id);

  RegionTable& table_;
  const uint32_t number_;
  const ucp_mem_h handle_;
};

/// The regions of one Context and their registrations.
class RegionTable {
 public:
  /// `before_end` is called with each region that ends, while it can still be used: nothing may use it afterwards.
  RegionTable(const Worker& worker, uint64_t context_id, std::function<void(const Region&)> before_end)
      : worker_(worker), context_id_(context_id), before_end_(std::move(before_end)) {}

  /// Errors  INVALID_ARGUMENT: memory that UCX does not take (check_memory()). RESOURCE_EXHAUSTED: the device does not
  ///         take so much. FAILED_PRECONDITION: no device reaches that GPU's memory.
  absl::StatusOr<std::unique_ptr<MemoryRegion>> add(MemorySpan memory, Access access);

  /// The region that a header names, if its sender may reach `bytes` bytes there in this way.
  /// Errors  PERMISSION_DENIED: the reason, which the peer may read.
  absl::StatusOr<const Region*> resolve(const Header& header, uint64_t bytes, Access wanted) const;
  bool empty() const { return table_.empty(); }

 private:
  friend class Region;
  absl::StatusOr<ucp_mem_h> map(MemorySpan memory, Access access) const;
  bool is_taken_by_a_device(ucp_mem_h handle) const;
  absl::Status check_device(const MemorySpan& memory, ucp_mem_h handle) const;
  void remove(const Region& region);

  const Worker& worker_;
  const uint64_t context_id_;
  const std::function<void(const Region&)> before_end_;
  common::RegionTable table_;
};

}  // namespace gradrail::transport::ucx
