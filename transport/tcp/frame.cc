#include "transport/tcp/frame.h"

#include "base/crc32c.h"
#include "base/little_endian.h"
#include "fmt/format.h"

namespace gradrail::transport::tcp {
namespace {

constexpr uint16_t kMagic = 0x5267;  // "gR"
constexpr uint8_t kNotifyFlag = 1;
constexpr size_t kCrcAt = 4;

uint32_t header_crc(const HeaderBytes& bytes) {
  const uint32_t before = crc32c(bytes.data(), kCrcAt);
  return crc32c(bytes.data() + kCrcAt + 4, kHeaderBytes - kCrcAt - 4, before);
}

/// UINT64_MAX for a type that does not exist.
uint64_t max_length(uint8_t type) {
  switch (static_cast<FrameType>(type)) {
    case FrameType::hello:
      return 0;
    case FrameType::put:
    case FrameType::get_data:
      return kMaxFramePayloadBytes;
    case FrameType::message:
      return kMaxMessageBytes;
    case FrameType::get_request:
      // find_target() bounds it by the region; the answer takes several frames. UINT64_MAX marks an unknown type.
      return UINT64_MAX - 1;
    case FrameType::refusal:
      return kMaxRefusalBytes;
    case FrameType::seal:
      return kSealBytes;
  }
  return UINT64_MAX;
}

}  // namespace

HeaderBytes encode(const FrameHeader& header) {
  HeaderBytes bytes;
  store_le(&bytes[0], kMagic);
  store_le(&bytes[2], static_cast<uint8_t>(header.type));
  store_le(&bytes[3], static_cast<uint8_t>(header.notify ? kNotifyFlag : 0));
  store_le(&bytes[8], header.region);
  store_le(&bytes[12], header.epoch);
  store_le(&bytes[16], header.token);
  store_le(&bytes[24], header.offset);
  store_le(&bytes[32], header.length);
  store_le(&bytes[40], header.value);
  store_le(&bytes[kCrcAt], header_crc(bytes));
  return bytes;
}

absl::StatusOr<FrameHeader> decode(const HeaderBytes& bytes) {
  // Magic and crc are checked first: the other fields of a damaged header state nothing.
  if (load_le<uint16_t>(&bytes[0]) != kMagic) return absl::DataLossError("no frame of gradrail");
  if (load_le<uint32_t>(&bytes[kCrcAt]) != header_crc(bytes)) return absl::DataLossError("damaged frame header (crc)");
  const uint8_t type = load_le<uint8_t>(&bytes[2]);
  const uint8_t flags = load_le<uint8_t>(&bytes[3]);
  const FrameHeader header = {.type = static_cast<FrameType>(type),
                              .notify = (flags & kNotifyFlag) != 0,
                              .region = load_le<uint32_t>(&bytes[8]),
                              .epoch = load_le<uint32_t>(&bytes[12]),
                              .token = load_le<uint64_t>(&bytes[16]),
                              .offset = load_le<uint64_t>(&bytes[24]),
                              .length = load_le<uint64_t>(&bytes[32]),
                              .value = load_le<uint64_t>(&bytes[40])};
  const uint64_t limit = max_length(type);
  if (limit == UINT64_MAX) return absl::DataLossError(fmt::format("unknown frame type {}", type));
  if (flags > kNotifyFlag || (header.notify && header.type != FrameType::put)) {
    return absl::DataLossError(fmt::format("unknown flags {:#x} in a {} frame", flags, frame_name(header.type)));
  }
  if (header.length > limit) {
    return absl::DataLossError(
        fmt::format("{} frame of {} bytes, more than {}", frame_name(header.type), header.length, limit));
  }
  return header;
}

bool starts_frame(absl::Span<const std::byte> bytes) {
  return (bytes.empty() || bytes[0] == std::byte{kMagic & 0xff}) &&
         (bytes.size() < 2 || bytes[1] == std::byte{kMagic >> 8});
}

std::string refusal_frame(std::string_view reason, bool altered) {
  reason = reason.substr(0, kMaxRefusalBytes);
  const HeaderBytes header =
      encode({.type = FrameType::refusal, .length = reason.size(), .value = altered ? kAlteredRecord : 0});
  std::string frame(reinterpret_cast<const char*>(header.data()), header.size());
  return frame.append(reason);
}

std::string_view frame_name(FrameType type) {
  switch (type) {
    case FrameType::hello:
      return "hello";
    case FrameType::put:
      return "put";
    case FrameType::message:
      return "message";
    case FrameType::get_request:
      return "get";
    case FrameType::get_data:
      return "get answer";
    case FrameType::refusal:
      return "refusal";
    case FrameType::seal:
      return "seal";
  }
  return "unknown";
}

}  // namespace gradrail::transport::tcp
