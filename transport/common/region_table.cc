#include "transport/common/region_table.h"

#include "base/check.h"
#include "fmt/format.h"
#include "transport/common/slice.h"

namespace gradrail::transport::common {
namespace {

absl::Status refuse(std::string_view request, std::string_view why) {
  return absl::PermissionDeniedError(fmt::format("{} {}", request, why));
}

}  // namespace

RegionId RegionTable::add(const MemoryRegion* region, uint64_t token) {
  GRADRAIL_CHECK(region != nullptr && slots_.size() < UINT32_MAX);
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t number = free_.back();
  free_.pop_back();
  Slot& slot = slots_[number];
  GRADRAIL_CHECK(slot.region == nullptr);  // a number in free_ names no region
  slot = {region, slot.epoch + 1, token};
  return {number, slot.epoch, token};
}

void RegionTable::remove(uint32_t number) {
  GRADRAIL_CHECK(number < slots_.size() && slots_[number].region != nullptr);
  // The epoch stays in the slot: it distinguishes the next region of this number from this one.
  slots_[number].region = nullptr;
  free_.push_back(number);
}

absl::StatusOr<const MemoryRegion*> RegionTable::look_up(std::string_view request, const RegionId& id) const {
  if (id.number >= slots_.size()) return refuse(request, "to a region that does not exist");
  // The check precedes the one of the token, which a region that ended leaves in its slot.
  if (!alive(id.number, id.epoch)) return refuse(request, "to a region that is no longer registered");
  const Slot& slot = slots_[id.number];
  if (slot.token != id.token) return refuse(request, "with a wrong key");
  return slot.region;
}

absl::StatusOr<const MemoryRegion*> RegionTable::find(std::string_view request, const RegionId& id) const {
  absl::StatusOr<const MemoryRegion*> found = look_up(request, id);
  // No range here: these peers open a whole region (shm, ofi).
  if (found.ok() && (*found)->access() == Access::local)
    return refuse(request, "to a region that is not open to peers");
  return found;
}

absl::StatusOr<const MemoryRegion*> RegionTable::resolve(std::string_view request, const RegionId& id,
                                                         const RemoteAccess& access) const {
  absl::StatusOr<const MemoryRegion*> found = look_up(request, id);
  if (!found.ok()) return found;
  const MemoryRegion& region = **found;
  if (!allows(region.access(), access.wanted)) {
    return refuse(request, access.wanted == Access::remote_write ? "to a region not remotely writable"
                                                                 : "from a region not remotely readable");
  }
  const size_t size = region.span().bytes;
  if (!is_inside(access.offset, access.bytes, size)) {
    return refuse(request, fmt::format("outside region (offset {}, length {}, region {} bytes)", access.offset,
                                       access.bytes, size));
  }
  return found;
}

}  // namespace gradrail::transport::common
