#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/random_bits.h"
#include "transport/memory_region.h"

namespace gradrail::transport::common {

/// The name of a region in keys and headers, and the proof that the sender holds its key.
struct RegionId {
  uint32_t number = 0;
  uint32_t epoch = 0;
  uint64_t token = 0;
};

/// The part of a region that a peer requests.
struct RemoteAccess {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  Access wanted = Access::local;
};

/// The regions of one Context by number. It alone decides which of them a peer may access.
class RegionTable {
 public:
  /// `region` may still be under construction, and must stay at its place until remove().
  RegionId add(const MemoryRegion* region, uint64_t token = random_bits());
  void remove(uint32_t number);

  /// Epoch of a region, for formats without an epoch, in which only the token distinguishes an old key from a new one.
  uint32_t epoch_of(uint32_t number) const { return number < slots_.size() ? slots_[number].epoch : 0; }
  /// Whether the region that find() returned is still registered.
  bool alive(uint32_t number, uint32_t epoch) const {
    return number < slots_.size() && slots_[number].region != nullptr && slots_[number].epoch == epoch;
  }
  bool empty() const { return free_.size() == slots_.size(); }

  /// The region that `id` names, if peers have any right there. `request` begins the reason of a refusal: "put", "map".
  /// Errors  PERMISSION_DENIED: the reason, which the peer may read.
  absl::StatusOr<const MemoryRegion*> find(std::string_view request, const RegionId& id) const;
  /// The region, if the holder of the key has this access.
  /// Errors  As find().
  absl::StatusOr<const MemoryRegion*> resolve(std::string_view request, const RegionId& id,
                                              const RemoteAccess& access) const;

  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.region != nullptr) visit(*slot.region);
    }
  }

 private:
  absl::StatusOr<const MemoryRegion*> look_up(std::string_view request, const RegionId& id) const;

  struct Slot {
    const MemoryRegion* region = nullptr;
    uint32_t epoch = 0;  ///< counts the regions of this number: an old key does not open a new region
    uint64_t token = 0;
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace gradrail::transport::common
