#include "transport/loopback/memory_region.h"

#include <atomic>
#include <cstring>

#include "base/random.h"

namespace gradrail::transport::loopback {
namespace {

// Key: 8 bytes magic | 8 bytes number of the region, mixed so that no two neighbouring keys look alike.
constexpr std::string_view kMagic = "gr-loop:";

std::string next_key() {
  static std::atomic<uint64_t> count = 0;
  const uint64_t mixed = Random(count.fetch_add(1)).next();
  std::string key(kMagic);
  key.append(reinterpret_cast<const char*>(&mixed), sizeof(mixed));
  return key;
}

}  // namespace

bool is_key(std::string_view key) { return key.size() == kMagic.size() + sizeof(uint64_t) && key.starts_with(kMagic); }

std::string RegionTable::add(Entry entry) {
  const std::lock_guard lock(mutex_);
  std::string key = next_key();
  entries_.emplace(key, entry);
  return key;
}

void RegionTable::remove(const std::string& key) {
  const std::lock_guard lock(mutex_);
  entries_.erase(key);
}

std::optional<RegionTable::Entry> RegionTable::find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

LoopbackRegion::LoopbackRegion(MemorySpan span, Access access, std::shared_ptr<RegionTable> table)
    : MemoryRegion(span, access, table->add({span, access})), table_(std::move(table)) {}

LoopbackRegion::~LoopbackRegion() { table_->remove(key()); }

}  // namespace gradrail::transport::loopback
