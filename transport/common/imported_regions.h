#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "transport/connection.h"

namespace gradrail::transport::common {

/// The regions of the peer that one connection has imported. RemoteRegion n is the n-th of them; 0 names no region.
template <typename Region>
class ImportedRegions {
 public:
  RemoteRegion add(Region region) {
    GRADRAIL_CHECK(regions_.size() < UINT32_MAX);  // RemoteRegion has 32 bits
    regions_.push_back(std::move(region));
    return static_cast<RemoteRegion>(regions_.size());
  }
  /// Null: the name of no import.
  const Region* find(RemoteRegion name) const {
    const size_t index = static_cast<size_t>(name) - 1;  // name 0 yields an index beyond all
    return index < regions_.size() ? &regions_[index] : nullptr;
  }
  Region* find(RemoteRegion name) { return const_cast<Region*>(std::as_const(*this).find(name)); }
  size_t size() const { return regions_.size(); }

 private:
  std::vector<Region> regions_;
};

}  // namespace gradrail::transport::common
