#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "transport/memory_region.h"
#include "transport/shm/wire.h"

namespace gradrail::transport::shm {

/// The regions of one Context that peers may ask for.
/// Threads  Owner thread of the Context.
class RegionTable {
 public:
  /// Gives the region an id and a token. Its descriptor stays the caller's.
  absl::StatusOr<RegionKey> add(MemorySpan span, Access access);
  void remove(uint64_t id) { descriptors_.erase(id); }

  /// The descriptor behind a key that a peer shows. PERMISSION_DENIED: not exactly a key that add() gave out, or the
  /// region is local or gone.
  absl::StatusOr<int> find(const RegionKey& shown) const;

  bool empty() const { return descriptors_.empty(); }

 private:
  struct Entry {
    RegionKey key;
    int fd = -1;
  };
  std::unordered_map<uint64_t, Entry> descriptors_;
  uint64_t next_id_ = 1;
};

/// Registration costs nothing here: the memory becomes reachable when a peer asks for it with the key.
class ShmRegion final : public MemoryRegion {
 public:
  /// Errors  INVALID_ARGUMENT: memory that cannot be passed to another process, with the remedy.
  static absl::StatusOr<std::unique_ptr<MemoryRegion>> create(RegionTable* table, MemorySpan span, Access access);
  ~ShmRegion() override { table_->remove(id_); }

 private:
  ShmRegion(RegionTable* table, const RegionKey& key, MemorySpan span, Access access)
      : MemoryRegion(span, access, encode(key)), table_(table), id_(key.id) {}

  RegionTable* table_;
  uint64_t id_;
};

}  // namespace gradrail::transport::shm
