#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "transport/common/region_table.h"
#include "transport/memory_region.h"

namespace gradrail::transport::loopback {

/// The regions of one context.
/// Threads  Any: a peer looks regions up when it maps them.
class SharedRegionTable {
 public:
  /// Returns the key of the new region.
  std::string add(const MemoryRegion* region);
  void remove(const std::string& key);
  /// The begin of the region, and of a part of it, for a peer that shows this key. `request` begins the reason of a
  /// refusal.
  /// Errors  PERMISSION_DENIED: the reason.
  absl::StatusOr<std::byte*> find(std::string_view request, std::string_view key) const;
  absl::StatusOr<std::byte*> resolve(std::string_view request, std::string_view key,
                                     const common::RemoteAccess& access) const;

 private:
  mutable Mutex mutex_;
  common::RegionTable table_ ABSL_GUARDED_BY(mutex_);
};

/// Memory of this process that peers reach through the table until the region ends.
class LoopbackRegion final : public MemoryRegion {
 public:
  /// shared_ptr: peers hold the table as long as their link exists, which may be longer than this context.
  LoopbackRegion(MemorySpan span, Access access, std::shared_ptr<SharedRegionTable> table)
      : MemoryRegion(span, access, table->add(this)), table_(std::move(table)) {}
  ~LoopbackRegion() override { table_->remove(key()); }

 private:
  std::shared_ptr<SharedRegionTable> table_;
};

/// Whether `key` has the form of a key of this transport. Only the peer finds the region that it opens.
bool is_key(std::string_view key);

}  // namespace gradrail::transport::loopback
