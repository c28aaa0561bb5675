// Region keys of tcp, ucx and ofi, and the requests that carry their fields.
#include <array>
#include <string>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/little_endian.h"
#include "base/status.h"
#include "tests/fuzz/fuzz.h"
#include "transport/common/byte_codec.h"
#include "transport/ofi/memory_region.h"
#include "transport/tcp/memory_region.h"
#include "transport/ucx/memory_region.h"

namespace gradrail::transport {
namespace {

template <typename Key>
void try_key(std::string_view bytes, std::string_view transport) {
  const absl::StatusOr<Key> key = Key::parse(bytes);
  if (!key.ok()) return fuzz::check_refusal(key.status(), absl::StatusCode::kInvalidArgument, transport);
  GRADRAIL_CHECK(key->encode() == bytes);
}

/// Magic and checksum of a key, for the checks behind them.
std::string repaired(std::string_view magic, std::string_view bytes, size_t key_bytes) {
  std::string key(magic);
  key += bytes.substr(0, key_bytes - 8);
  key.resize(key_bytes - 4);
  std::byte crc[4];
  store_le(crc, crc32c(key.data(), key.size()));
  return key.append(reinterpret_cast<const char*>(crc), sizeof(crc));
}

/// Two regions of a task, one of which is open to peers.
class Owner {
 public:
  Owner() {
    GRADRAIL_CHECK(open_.ok() && closed_.ok());
    const absl::StatusOr<tcp::RegionKey> key = tcp::RegionKey::parse((*open_)->key());
    GRADRAIL_CHECK(key.ok());
    key_ = *key;
  }

  /// A frame with the right key, and with fields of the input in place of those that `wrong` names.
  void try_request(common::ByteReader in) const {
    const auto wrong = in.number<uint8_t>();
    const Access wanted = (wrong & 8) != 0 ? Access::remote_read : Access::remote_write;
    tcp::FrameHeader frame = {.type = tcp::FrameType::put,
                              .region = key_.region,
                              .epoch = key_.epoch,
                              .token = key_.token,
                              .offset = in.number<uint64_t>(),
                              .length = in.number<uint64_t>()};
    if ((wrong & 1) != 0) frame.region = in.number<uint32_t>();
    if ((wrong & 2) != 0) frame.epoch = in.number<uint32_t>();
    if ((wrong & 4) != 0) frame.token = in.number<uint64_t>();
    const absl::StatusOr<std::byte*> target = tcp::find_target(table_, frame, wanted);
    if (!target.ok()) return fuzz::check_refusal(target.status(), absl::StatusCode::kPermissionDenied, "put ");
    GRADRAIL_CHECK(frame.region == key_.region && frame.token == key_.token && wanted == Access::remote_write);
    GRADRAIL_CHECK(*target >= memory_.data() && frame.length <= memory_.size());
    GRADRAIL_CHECK(*target + frame.length <= memory_.data() + memory_.size());
  }

 private:
  mutable std::array<std::byte, 4096> memory_{};
  std::array<std::byte, 64> other_memory_{};
  common::RegionTable table_;
  absl::StatusOr<std::unique_ptr<MemoryRegion>> open_ =
      tcp::register_region(table_, {.data = memory_.data(), .bytes = memory_.size()}, Access::remote_write);
  absl::StatusOr<std::unique_ptr<MemoryRegion>> closed_ =
      tcp::register_region(table_, {.data = other_memory_.data(), .bytes = other_memory_.size()}, Access::local);
  tcp::RegionKey key_;
};

}  // namespace
}  // namespace gradrail::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace gradrail::transport;
  const std::string_view text = gradrail::fuzz::text_of(data, bytes);
  static const Owner owner;
  owner.try_request(common::ByteReader(text));
  try_key<tcp::RegionKey>(text, "tcp");
  try_key<ucx::RegionKey>(text, "ucx");
  try_key<ofi::RegionKey>(text, "ofi");
  try_key<tcp::RegionKey>(repaired("tcp1", text, 32), "tcp");
  try_key<ucx::RegionKey>(repaired("ucx1", text, 40), "ucx");
  try_key<ofi::RegionKey>(repaired("ofi1", text, 33), "ofi");
  return 0;
}
