#include "transport/tcp/memory_region.h"

#include "base/status.h"
#include "transport/capabilities.h"
#include "transport/common/byte_codec.h"

namespace gradrail::transport::tcp {
namespace {

// Key:  "tcp1" | region u32 | epoch u32 | token u64 | bytes u64 | crc32c of all before
constexpr std::string_view kKeyMagic = "tcp1";
constexpr size_t kKeyBytes = 32;

class Region final : public MemoryRegion {
 public:
  Region(common::RegionTable& table, MemorySpan memory, Access access)
      : Region(table, memory, access, table.add(this)) {}
  ~Region() override { table_.remove(number_); }

 private:
  Region(common::RegionTable& table, MemorySpan memory, Access access, const common::RegionId& id)
      : MemoryRegion(memory, access, RegionKey{id.number, id.epoch, id.token, memory.bytes}.encode()),
        table_(table),
        number_(id.number) {}

  common::RegionTable& table_;
  const uint32_t number_;
};

}  // namespace

std::string RegionKey::encode() const {
  return common::ByteWriter(kKeyMagic).number(region).number(epoch).number(token).number(bytes).seal().take();
}

absl::StatusOr<RegionKey> RegionKey::parse(std::string_view key) {
  GRADRAIL_ASSIGN_OR_RETURN(common::ByteReader in, common::open_key("tcp", kKeyMagic, kKeyBytes, key));
  return RegionKey{in.number<uint32_t>(), in.number<uint32_t>(), in.number<uint64_t>(), in.number<uint64_t>()};
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> register_region(common::RegionTable& table, MemorySpan memory,
                                                              Access access) {
  GRADRAIL_RETURN_IF_ERROR(check_memory("tcp", memory));
  return std::make_unique<Region>(table, memory, access);
}

absl::StatusOr<std::byte*> find_target(const common::RegionTable& table, const FrameHeader& frame, Access wanted) {
  GRADRAIL_ASSIGN_OR_RETURN(const MemoryRegion* const region,
                            table.resolve(frame_name(frame.type), {frame.region, frame.epoch, frame.token},
                                          {.offset = frame.offset, .bytes = frame.length, .wanted = wanted}));
  return region->span().data + frame.offset;
}

}  // namespace gradrail::transport::tcp
