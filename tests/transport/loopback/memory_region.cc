#include "tests/transport/loopback/memory_region.h"

#include <atomic>

#include "base/check.h"
#include "base/random.h"
#include "base/status.h"
#include "transport/common/byte_codec.h"

namespace gradrail::transport::loopback {
namespace {

// Key: 8 bytes magic | number u32 | epoch u32 | token u64
constexpr std::string_view kMagic = "gr-loop:";
constexpr size_t kKeyBytes = kMagic.size() + 16;

/// The same tokens in every run, because simulations repeat exactly. No two of a process are equal.
uint64_t next_token() {
  static std::atomic<uint64_t> count = 0;
  return Random(count.fetch_add(1)).next();
}

common::RegionId id_of(std::string_view key) {
  // import() has checked the form of a peer's key, so all fields are there.
  GRADRAIL_CHECK(is_key(key));
  common::ByteReader in(key.substr(kMagic.size()));
  return {in.number<uint32_t>(), in.number<uint32_t>(), in.number<uint64_t>()};
}

}  // namespace

bool is_key(std::string_view key) { return key.size() == kKeyBytes && key.starts_with(kMagic); }

std::string SharedRegionTable::add(const MemoryRegion* region) {
  const MutexLock lock(mutex_);
  const common::RegionId id = table_.add(region, next_token());
  return common::ByteWriter(kMagic).number(id.number).number(id.epoch).number(id.token).take();
}

void SharedRegionTable::remove(const std::string& key) {
  const MutexLock lock(mutex_);
  table_.remove(id_of(key).number);
}

absl::StatusOr<std::byte*> SharedRegionTable::find(std::string_view request, std::string_view key) const {
  const MutexLock lock(mutex_);
  GRADRAIL_ASSIGN_OR_RETURN(const MemoryRegion* const region, table_.find(request, id_of(key)));
  return region->span().data;
}

absl::StatusOr<std::byte*> SharedRegionTable::resolve(std::string_view request, std::string_view key,
                                                      const common::RemoteAccess& access) const {
  const MutexLock lock(mutex_);
  GRADRAIL_ASSIGN_OR_RETURN(const MemoryRegion* const region, table_.resolve(request, id_of(key), access));
  return region->span().data + access.offset;
}

}  // namespace gradrail::transport::loopback
