#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "transport/common/imported_regions.h"
#include "transport/connection.h"
#include "transport/ofi/handshake.h"
#include "transport/ofi/memory_region.h"

namespace gradrail::transport::ofi {

/// A region of the peer. The peer answers the request for it with a device key.
struct Import {
  RegionKey key;
  bool granted = false;
  uint64_t device_key = 0;
  uint64_t base = 0;
};

/// The regions of the peer that one connection has imported.
class Imports {
 public:
  /// A request for the next import, which add() then adds.
  /// Errors  RESOURCE_EXHAUSTED: too many.
  absl::StatusOr<Request> request(const RegionKey& key) const;
  RemoteRegion add(const RegionKey& key) { return regions_.add({.key = key}); }
  /// Errors  DATA_LOSS: the answer to no request.
  absl::Status grant(const Grant& grant);
  /// The region of a slice; null for a put of no bytes to no region.
  /// Errors  INVALID_ARGUMENT: outside, or without the right. RESOURCE_EXHAUSTED: not granted yet.
  absl::StatusOr<const Import*> find(const RemoteSlice& slice, uint64_t bytes, Access wanted) const;

 private:
  common::ImportedRegions<Import> regions_;
};

}  // namespace gradrail::transport::ofi
