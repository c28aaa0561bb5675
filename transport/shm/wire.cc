#include "transport/shm/wire.h"

#include <cstring>

#include "base/check.h"
#include "fmt/format.h"
#include "transport/common/byte_codec.h"
#include "transport/shm/ring.h"

namespace gradrail::transport::shm {

std::string encode(const RegionKey& key) { return std::string(reinterpret_cast<const char*>(&key), sizeof(key)); }

std::optional<RegionKey> decode_key(std::string_view bytes) {
  RegionKey key;
  if (bytes.size() != sizeof(key)) return std::nullopt;
  std::memcpy(&key, bytes.data(), sizeof(key));
  if (key.magic != kMagic || key.version != kVersion) return std::nullopt;
  if (key.access > static_cast<uint8_t>(Access::remote_read_write)) return std::nullopt;
  return key;
}

ControlMessage make_hello() {
  ControlMessage hello;
  hello.kind = ControlKind::hello;
  hello.key.bytes = sizeof(RingPair);
  return hello;
}

ControlMessage make_disconnect(const absl::Status& why) {
  GRADRAIL_CHECK(!why.ok());  // the peer reads code 0 as an unknown reason
  ControlMessage disconnect;
  disconnect.kind = ControlKind::disconnect;
  disconnect.code = static_cast<uint8_t>(why.code());
  why.message().copy(disconnect.text, sizeof(disconnect.text) - 1);  // not memcpy(): an empty text has no address
  return disconnect;
}

absl::Status reason_of(const ControlMessage& disconnect) {
  // The peer may have filled the field to its end, without a zero byte.
  const std::string text = common::printable({disconnect.text, strnlen(disconnect.text, sizeof(disconnect.text))});
  // Code 0 would make the loss of the peer an OK status.
  const bool known = disconnect.code > 0 && disconnect.code <= static_cast<uint8_t>(absl::StatusCode::kUnauthenticated);
  return {known ? static_cast<absl::StatusCode>(disconnect.code) : absl::StatusCode::kUnavailable, text};
}

absl::Status check_hello(const ControlMessage& hello, size_t descriptor_count) {
  if (hello.magic != kMagic) return absl::InvalidArgumentError("hello does not begin with gradrail's magic number");
  if (hello.version != kVersion) {
    return absl::InvalidArgumentError(
        fmt::format("the peer has version {} of shm, this side has version {} (run the same build on both sides)",
                    hello.version, kVersion));
  }
  if (hello.kind != ControlKind::hello) return absl::InvalidArgumentError("first packet is not a hello");
  if (hello.key.bytes != sizeof(RingPair)) return absl::InvalidArgumentError("rings of another size");
  if (descriptor_count != 2) {
    return absl::InvalidArgumentError(fmt::format("hello with {} descriptors of 2", descriptor_count));
  }
  return absl::OkStatus();
}

}  // namespace gradrail::transport::shm
