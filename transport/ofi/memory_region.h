#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/common/region_table.h"
#include "transport/memory_region.h"
#include "transport/ofi/domain.h"

namespace gradrail::transport::ofi {

/// Content of a key: the region, the proof that the holder may use it, its size and rights. It is not a key of the
/// device. The region's owner sends device keys, per connection, to each peer that presents this one (handshake.h).
struct RegionKey {
  uint32_t region = 0;
  uint32_t epoch = 0;
  uint64_t token = 0;
  uint64_t bytes = 0;
  Access access = Access::local;

  std::string encode() const;
  /// Errors  INVALID_ARGUMENT: not a key of this transport, or damaged.
  static absl::StatusOr<RegionKey> parse(std::string_view key);
  bool operator==(const RegionKey&) const = default;
};

class RegionTable;

/// Memory and its registrations, made in each domain when a connection there first needs it.
/// Invariants  1. In a domain of one accepted peer it is remotely accessible only after that peer has shown the key.
///             2. No registration outlives the region or the domain (RegionTable::forget).
class Region final : public MemoryRegion {
 public:
  Region(RegionTable& table, MemorySpan memory, Access access);
  ~Region() override;

  /// Descriptor for transfers from and to this memory over endpoints of `domain`. Null: the provider needs none. For
  /// GPU memory every provider needs one, because the descriptor states the kind of the address.
  /// Errors  RESOURCE_EXHAUSTED: locked memory.
  absl::StatusOr<void*> descriptor_in(Domain& domain) const;
  /// Registration for a peer of `domain` that has shown the key.
  absl::StatusOr<const Registration*> open_in(Domain& domain) const;

 private:
  friend class RegionTable;
  struct Entry {
    Domain* domain = nullptr;
    bool remote = false;
    Registration registration;
  };
  Region(RegionTable& table, MemorySpan memory, Access access, const common::RegionId& id);
  absl::StatusOr<const Registration*> registration_in(Domain& domain, bool remote) const;

  RegionTable& table_;
  const uint32_t number_;
  mutable std::vector<Entry> entries_;  ///< usually one; two for each domain at most
};

/// The regions of one Context and their registrations.
class RegionTable {
 public:
  /// The region that this key opens.
  /// Errors  PERMISSION_DENIED: the reason, which the peer may read.
  absl::StatusOr<const Region*> find(const RegionKey& key) const;
  /// Registers what only transfers from here can mean, before the first of them.
  absl::Status prepare(Domain& domain) const;
  void forget(const Domain& domain) const;
  bool empty() const { return table_.empty(); }

 private:
  friend class Region;
  common::RegionTable table_;
};

}  // namespace gradrail::transport::ofi
