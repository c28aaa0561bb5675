#include "transport/ofi/memory_region.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/crc32c.h"
#include "base/random_bits.h"
#include "transport/tcp/little_endian.h"

namespace gradrail::transport::ofi {
namespace {

using tcp::load_le;
using tcp::store_le;

// Key:  "ofi1" | region u32 | epoch u32 | token u64 | bytes u64 | access u8 | crc32c of all before
constexpr std::string_view kKeyMagic = "ofi1";
constexpr size_t kKeyBytes = 33;

}  // namespace

std::string RegionKey::encode() const {
  std::array<std::byte, kKeyBytes> out;
  std::memcpy(out.data(), kKeyMagic.data(), kKeyMagic.size());
  store_le(&out[4], region);
  store_le(&out[8], epoch);
  store_le(&out[12], token);
  store_le(&out[20], bytes);
  store_le(&out[28], static_cast<uint8_t>(access));
  store_le(&out[29], crc32c(out.data(), 29));
  return std::string(reinterpret_cast<const char*>(out.data()), out.size());
}

absl::StatusOr<RegionKey> RegionKey::parse(std::string_view key) {
  const auto* from = reinterpret_cast<const std::byte*>(key.data());
  if (key.size() != kKeyBytes || key.substr(0, 4) != kKeyMagic) {
    return absl::InvalidArgumentError("ofi: not a region key of ofi");
  }
  const auto access = load_le<uint8_t>(from + 28);
  if (load_le<uint32_t>(from + 29) != crc32c(from, 29) || access > static_cast<uint8_t>(Access::remote_read_write)) {
    return absl::InvalidArgumentError("ofi: damaged region key");
  }
  return RegionKey{load_le<uint32_t>(from + 4), load_le<uint32_t>(from + 8), load_le<uint64_t>(from + 12),
                   load_le<uint64_t>(from + 20), static_cast<Access>(access)};
}

Region::Region(RegionTable& table, const RegionKey& key, MemorySpan memory)
    : MemoryRegion(memory, key.access, key.encode()), table_(table), region_key_(key) {}

Region::~Region() {
  entries_.clear();
  table_.remove(region_key_.region);
}

absl::StatusOr<const Registration*> Region::registration_in(Domain& domain, bool remote) const {
  for (const Entry& entry : entries_) {
    if (entry.domain == &domain && entry.remote >= remote) return &entry.registration;
  }
  absl::StatusOr<Registration> made = domain.add(span(), remote ? access() : Access::local);
  if (!made.ok()) return made.status();
  return &entries_.emplace_back(Entry{&domain, remote, *std::move(made)}).registration;
}

absl::StatusOr<void*> Region::descriptor_in(Domain& domain) const {
  if (!domain.provider().needs_descriptors && span().kind == MemoryKind::host) return nullptr;
  const absl::StatusOr<const Registration*> found = registration_in(domain, false);
  if (!found.ok()) return found.status();
  return (*found)->descriptor;
}

absl::StatusOr<const Registration*> Region::open_in(Domain& domain) const { return registration_in(domain, true); }

std::unique_ptr<Region> RegionTable::add(MemorySpan memory, Access access) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t number = free_.back();
  free_.pop_back();
  Slot& slot = slots_[number];
  ++slot.epoch;
  auto region =
      std::make_unique<Region>(*this, RegionKey{number, slot.epoch, random_bits(), memory.bytes, access}, memory);
  slot.region = region.get();
  return region;
}

void RegionTable::remove(uint32_t region) {
  slots_[region].region = nullptr;
  free_.push_back(region);
}

absl::StatusOr<const Region*> RegionTable::find(const RegionKey& key) const {
  if (key.region >= slots_.size()) return absl::PermissionDeniedError("key of a region that does not exist");
  const Slot& slot = slots_[key.region];
  if (slot.region == nullptr || slot.epoch != key.epoch) {
    return absl::PermissionDeniedError("key of a region that is no longer registered");
  }
  if (slot.region->region_key() != key) return absl::PermissionDeniedError("wrong key");
  if (key.access == Access::local) return absl::PermissionDeniedError("key of a region that is not open to peers");
  return slot.region;
}

absl::Status RegionTable::prepare(Domain& domain) const {
  for (const Slot& slot : slots_) {
    if (slot.region == nullptr || slot.region->access() != Access::local) continue;
    if (const auto made = slot.region->descriptor_in(domain); !made.ok()) return made.status();
  }
  return absl::OkStatus();
}

void RegionTable::forget(const Domain& domain) {
  for (const Slot& slot : slots_) {
    if (slot.region == nullptr) continue;
    std::erase_if(slot.region->entries_, [&](const Region::Entry& entry) { return entry.domain == &domain; });
  }
}

}  // namespace gradrail::transport::ofi
