#include "transport/ucx/handshake.h"

#include <algorithm>

#include "base/crc32c.h"
#include "fmt/format.h"
#include "transport/tcp/little_endian.h"

namespace gradrail::transport::ucx {
namespace {

using tcp::load_le;
using tcp::store_le;

constexpr std::string_view kMagic = "gRux";
constexpr size_t kFrameHeaderBytes = 8;
constexpr size_t kHandshakeCrcOffset = 24;
constexpr size_t kHandshakeHeaderBytes = 28;

const std::byte* bytes_of(std::string_view text) { return reinterpret_cast<const std::byte*>(text.data()); }

template <typename T>
void append_le(std::string& text, T value) {
  std::byte bytes[sizeof(T)];
  store_le(bytes, value);
  text.append(reinterpret_cast<const char*>(bytes), sizeof(T));
}

uint32_t checksum(std::string_view fields, std::string_view address) {
  return crc32c(address.data(), address.size(), crc32c(fields.data(), fields.size()));
}

std::string frame(FrameKind kind, bool more, std::string_view text) {
  std::string bytes(kMagic);
  append_le(bytes, kProtocolVersion);
  bytes += static_cast<char>(kind);
  bytes += static_cast<char>(more ? 1 : 0);
  return bytes.append(text);
}

}  // namespace

std::vector<std::string> frames_of(FrameKind kind, std::string_view text, size_t max_frame_bytes) {
  const size_t part_bytes = max_frame_bytes - kFrameHeaderBytes;
  std::vector<std::string> frames;
  do {
    const std::string_view part = text.substr(0, part_bytes);
    text.remove_prefix(part.size());
    frames.push_back(frame(kind, !text.empty(), part));
  } while (!text.empty());
  return frames;
}

absl::StatusOr<Frame> parse_frame(std::string_view bytes) {
  if (bytes.size() < kFrameHeaderBytes || bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::DataLossError(
        "not a handshake of gradrail's ucx transport: is that address one of another transport?");
  }
  const auto version = load_le<uint16_t>(bytes_of(bytes) + 4);
  if (version != kProtocolVersion) {
    return absl::FailedPreconditionError(fmt::format(
        "protocol version {}, this side speaks version {}: run the same gradrail on both", version, kProtocolVersion));
  }
  const auto kind = static_cast<uint8_t>(bytes[6]);
  const auto more = static_cast<uint8_t>(bytes[7]);
  if (kind < 1 || kind > static_cast<uint8_t>(FrameKind::disconnect) || more > 1) {
    return absl::DataLossError(fmt::format("frame of unknown kind {}", kind));
  }
  return Frame{static_cast<FrameKind>(kind), more == 1, bytes.substr(kFrameHeaderBytes)};
}

std::string encode(const Handshake& handshake) {
  std::string text;
  append_le(text, handshake.context);
  append_le(text, handshake.connection);
  append_le(text, handshake.token);
  append_le(text, handshake.ucx_major);
  append_le(text, handshake.ucx_minor);
  append_le(text, checksum(text, handshake.worker_address));
  return text + handshake.worker_address;
}

absl::StatusOr<Handshake> parse_handshake(std::string_view text, uint16_t own_ucx_major, uint16_t own_ucx_minor) {
  if (text.size() <= kHandshakeHeaderBytes) return absl::DataLossError("handshake cut short");
  const std::byte* from = bytes_of(text);
  // UCX unpacks an address without looking twice: what was damaged must not get that far.
  const uint32_t expected = checksum(text.substr(0, kHandshakeCrcOffset), text.substr(kHandshakeHeaderBytes));
  if (load_le<uint32_t>(from + kHandshakeCrcOffset) != expected) {
    return absl::DataLossError("damaged handshake");
  }
  Handshake handshake = {.context = load_le<uint64_t>(from),
                         .connection = load_le<uint32_t>(from + 8),
                         .token = load_le<uint64_t>(from + 12),
                         .ucx_major = load_le<uint16_t>(from + 20),
                         .ucx_minor = load_le<uint16_t>(from + 22),
                         .worker_address = std::string(text.substr(kHandshakeHeaderBytes))};
  // UCX promises no common wire format across releases.
  if (handshake.ucx_major != own_ucx_major || handshake.ucx_minor != own_ucx_minor) {
    return absl::FailedPreconditionError(fmt::format("UCX {}.{} there and UCX {}.{} here: install the same on both",
                                                     handshake.ucx_major, handshake.ucx_minor, own_ucx_major,
                                                     own_ucx_minor));
  }
  return handshake;
}

}  // namespace gradrail::transport::ucx
