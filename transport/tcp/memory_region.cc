#include "transport/tcp/memory_region.h"

#include <array>
#include <cstring>

#include "base/crc32c.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/capabilities.h"
#include "transport/tcp/little_endian.h"

namespace gradrail::transport::tcp {
namespace {

// Key:  "tcp1" | region u32 | epoch u32 | token u64 | bytes u64 | crc32c of all before
constexpr std::string_view kKeyMagic = "tcp1";
constexpr size_t kKeyBytes = 32;

class Region final : public MemoryRegion {
 public:
  Region(RegionTable& table, uint32_t number, MemorySpan memory, Access access, std::string key)
      : MemoryRegion(memory, access, std::move(key)), table_(table), number_(number) {}
  ~Region() override { table_.remove(number_); }

 private:
  RegionTable& table_;
  uint32_t number_;
};

}  // namespace

std::string RegionKey::encode() const {
  std::array<std::byte, kKeyBytes> bytes_out;
  std::memcpy(bytes_out.data(), kKeyMagic.data(), kKeyMagic.size());
  store_le(&bytes_out[4], region);
  store_le(&bytes_out[8], epoch);
  store_le(&bytes_out[12], token);
  store_le(&bytes_out[20], bytes);
  store_le(&bytes_out[28], crc32c(bytes_out.data(), 28));
  return std::string(reinterpret_cast<const char*>(bytes_out.data()), bytes_out.size());
}

absl::StatusOr<RegionKey> RegionKey::parse(std::string_view key) {
  const auto* from = reinterpret_cast<const std::byte*>(key.data());
  if (key.size() != kKeyBytes || key.substr(0, 4) != kKeyMagic) {
    return absl::InvalidArgumentError("tcp: not a region key of tcp");
  }
  if (load_le<uint32_t>(from + 28) != crc32c(from, 28)) return absl::InvalidArgumentError("tcp: damaged region key");
  return RegionKey{load_le<uint32_t>(from + 4), load_le<uint32_t>(from + 8), load_le<uint64_t>(from + 12),
                   load_le<uint64_t>(from + 20)};
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> RegionTable::add(MemorySpan memory, Access access) {
  GRADRAIL_RETURN_IF_ERROR(check_memory("tcp", memory));
  const uint64_t token = random_bits();
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t number = free_.back();
  free_.pop_back();
  Slot& slot = slots_[number];
  slot = {memory, access, token, slot.epoch + 1, true};
  const RegionKey key = {number, slot.epoch, token, memory.bytes};
  return std::make_unique<Region>(*this, number, memory, access, key.encode());
}

void RegionTable::remove(uint32_t region) {
  Slot& slot = slots_[region];
  slot = {.epoch = slot.epoch};
  free_.push_back(region);
}

absl::StatusOr<std::byte*> RegionTable::resolve(const FrameHeader& frame, Access wanted) const {
  const auto refuse = [&](std::string_view why) {
    return absl::PermissionDeniedError(fmt::format("{} {}", frame_name(frame.type), why));
  };
  if (frame.region >= slots_.size()) return refuse("to a region that does not exist");
  const Slot& slot = slots_[frame.region];
  if (!slot.used || slot.epoch != frame.epoch) return refuse("to a region that is no longer registered");
  if (slot.token != frame.token) return refuse("with a wrong key");
  if (!allows(slot.access, wanted)) {
    return refuse(wanted == Access::remote_write ? "to a region not remotely writable"
                                                 : "from a region not remotely readable");
  }
  if (frame.offset > slot.memory.bytes || frame.length > slot.memory.bytes - frame.offset) {
    return refuse(fmt::format("outside region (offset {}, length {}, region {} bytes)", frame.offset, frame.length,
                              slot.memory.bytes));
  }
  return slot.memory.data + frame.offset;
}

}  // namespace gradrail::transport::tcp
