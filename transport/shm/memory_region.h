#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "transport/common/region_table.h"
#include "transport/memory_region.h"
#include "transport/shm/wire.h"

namespace gradrail::transport::shm {

/// The descriptor behind a key that a peer shows.
/// Errors  PERMISSION_DENIED: not exactly a key that this table gave out, or the region is local or has ended.
absl::StatusOr<int> find_descriptor(const common::RegionTable& table, const RegionKey& shown);

/// A region whose registration costs nothing: the memory becomes reachable when a peer requests it with the key.
class ShmRegion final : public MemoryRegion {
 public:
  /// Errors  INVALID_ARGUMENT: memory that cannot be passed to another process, with the remedy.
  static absl::StatusOr<std::unique_ptr<MemoryRegion>> create(common::RegionTable& table, MemorySpan span,
                                                              Access access);
  ShmRegion(common::RegionTable& table, MemorySpan span, Access access)
      : ShmRegion(table, span, access, table.add(this)) {}
  ~ShmRegion() override { table_.remove(number_); }

 private:
  ShmRegion(common::RegionTable& table, MemorySpan span, Access access, const common::RegionId& id);

  common::RegionTable& table_;
  const uint32_t number_;
};

}  // namespace gradrail::transport::shm
