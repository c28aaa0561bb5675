#include "transport/ucx/handshake.h"

#include "base/check.h"
#include "base/crc32c.h"
#include "fmt/format.h"
#include "transport/common/byte_codec.h"

namespace gradrail::transport::ucx {
namespace {

using common::ByteReader;
using common::ByteWriter;

constexpr std::string_view kMagic = "gRux";
constexpr size_t kFrameHeaderBytes = 8;
constexpr size_t kHandshakeCrcOffset = 24;
constexpr size_t kHandshakeHeaderBytes = 28;

uint32_t checksum(std::string_view fields, std::string_view address) {
  return crc32c(address.data(), address.size(), crc32c(fields.data(), fields.size()));
}

std::string frame(FrameKind kind, bool more, std::string_view text) {
  return ByteWriter(kMagic)
      .number(kProtocolVersion)
      .number(static_cast<uint8_t>(kind))
      .number(static_cast<uint8_t>(more ? 1 : 0))
      .raw(text)
      .take();
}

}  // namespace

std::vector<std::string> frames_of(FrameKind kind, std::string_view text, size_t max_frame_bytes) {
  GRADRAIL_CHECK(max_frame_bytes > kFrameHeaderBytes);
  const size_t part_bytes = max_frame_bytes - kFrameHeaderBytes;
  std::vector<std::string> frames;
  // An empty text is one frame as well.
  do {
    const std::string_view part = text.substr(0, part_bytes);
    text.remove_prefix(part.size());
    frames.push_back(frame(kind, !text.empty(), part));
  } while (!text.empty());
  return frames;
}

absl::StatusOr<Frame> parse_frame(std::string_view bytes) {
  ByteReader in(bytes);
  if (bytes.size() < kFrameHeaderBytes || in.raw(kMagic.size()) != kMagic) {
    return absl::DataLossError(
        "not a handshake of gradrail's ucx transport: is that address one of another transport?");
  }
  const auto version = in.number<uint16_t>();
  if (version != kProtocolVersion) {
    return absl::FailedPreconditionError(fmt::format(
        "protocol version {}, this side has version {}: run the same gradrail on both", version, kProtocolVersion));
  }
  const auto kind = in.number<uint8_t>();
  const auto more = in.number<uint8_t>();
  if (kind < 1 || kind > static_cast<uint8_t>(FrameKind::disconnect) || more > 1) {
    return absl::DataLossError(fmt::format("frame of unknown kind {}", kind));
  }
  return Frame{static_cast<FrameKind>(kind), more == 1, in.rest()};
}

std::string encode(const Handshake& handshake) {
  const std::string fields = ByteWriter()
                                 .number(handshake.context)
                                 .number(handshake.connection)
                                 .number(handshake.token)
                                 .number(handshake.ucx_major)
                                 .number(handshake.ucx_minor)
                                 .take();
  return ByteWriter(fields).number(checksum(fields, handshake.worker_address)).raw(handshake.worker_address).take();
}

absl::StatusOr<Handshake> parse_handshake(std::string_view text, uint16_t own_ucx_major, uint16_t own_ucx_minor) {
  if (text.size() <= kHandshakeHeaderBytes) return absl::DataLossError("handshake cut short");
  ByteReader in(text);
  Handshake handshake;
  handshake.context = in.number<uint64_t>();
  handshake.connection = in.number<uint32_t>();
  handshake.token = in.number<uint64_t>();
  handshake.ucx_major = in.number<uint16_t>();
  handshake.ucx_minor = in.number<uint16_t>();
  const auto sum = in.number<uint32_t>();
  handshake.worker_address = std::string(in.rest());
  // UCX unpacks an address without looking twice: what was damaged must not get that far.
  if (sum != checksum(text.substr(0, kHandshakeCrcOffset), handshake.worker_address)) {
    return absl::DataLossError("damaged handshake");
  }
  // UCX promises no common wire format across releases.
  if (handshake.ucx_major != own_ucx_major || handshake.ucx_minor != own_ucx_minor) {
    return absl::FailedPreconditionError(fmt::format("UCX {}.{} there and UCX {}.{} here: install the same on both",
                                                     handshake.ucx_major, handshake.ucx_minor, own_ucx_major,
                                                     own_ucx_minor));
  }
  return handshake;
}

}  // namespace gradrail::transport::ucx
