#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gradrail::transport::tcp {

// Everything on the stream is a frame: a header of 48 bytes, then its payload. Little endian.
//
//   0      2     3      4      8         12       16      24       32       40       48
//   +------+-----+------+------+---------+--------+-------+--------+--------+--------+- - - - -
//   | "gR" |type |flags |crc32c|region id| epoch  | token | offset | length | value  | payload
//   +------+-----+------+------+---------+--------+-------+--------+--------+--------+- - - - -
//
//   type         region, epoch, token   offset               length             value           payload
//   hello        token = kHelloMagic    0                    0                  version         -
//   put          the target's key       in the region        of the payload     immediate       bytes for the region
//   message      0                      0                    of the payload     0               the message
//   get_request  the source's key       in the region        requested          get number      -
//   get_data     0                      in the answer        of the payload     get number      bytes of the region
//   refusal      0                      0                    of the payload     1: altered      why, for people
//   seal         region = cipher,       0                    32                 version         public key, seal/keys.h
//                token = kHelloMagic
//
// flags: bit 0, on the last frame of a put: notify with `value`. All other bits are 0.
// crc32c covers the header without the crc field. TCP protects payloads; headers decide where bytes land.
// The hello is the first frame of each side, and its layout is the same in every version. A refusal is the last frame.
// With encryption each side sends one seal frame before its hello. The stream of frames continues inside records
// (seal/record_cipher.h). The value 1 of a refusal counts inside a record only.

enum class FrameType : uint8_t { hello = 1, put, message, get_request, get_data, refusal, seal };

inline constexpr uint64_t kProtocolVersion = 1;
inline constexpr uint64_t kHelloMagic = 0x6c69617264617267;  // "gradrail"
inline constexpr size_t kHeaderBytes = 48;
/// Bulk gives way to a message at the next frame boundary: 256 KiB is 20 us at 100 Gb/s, and the header costs 0.02 %.
inline constexpr uint64_t kMaxFramePayloadBytes = 256 * 1024;
/// Control messages carry region keys and short reports; a page keeps the receiver's buffers cheap to recycle.
inline constexpr uint64_t kMaxMessageBytes = 4096;
/// A refusal is one sentence.
inline constexpr uint64_t kMaxRefusalBytes = 512;
/// An X25519 public key.
inline constexpr uint64_t kSealBytes = 32;
/// The value of a refusal for an altered record.
inline constexpr uint64_t kAlteredRecord = 1;
/// The region of a put that only notifies; it carries no bytes.
inline constexpr uint32_t kNoRegion = 0xffffffff;

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

struct FrameHeader {
  FrameType type = FrameType::hello;
  bool notify = false;
  uint32_t region = 0;
  uint32_t epoch = 0;
  uint64_t token = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t value = 0;

  /// The data that follows the header on the stream.
  uint64_t payload_bytes() const { return type == FrameType::get_request ? 0 : length; }
};

HeaderBytes encode(const FrameHeader& header);

/// Errors  DATA_LOSS: not a header (magic), damaged (crc), or one that no sender makes (type, flags, length).
absl::StatusOr<FrameHeader> decode(const HeaderBytes& bytes);

/// Whether a header can begin with these bytes.
bool starts_frame(absl::Span<const std::byte> bytes);

/// Header and payload of a refusal; a reason that is too long is cut. `altered`: this side received an altered record.
std::string refusal_frame(std::string_view reason, bool altered = false);

std::string_view frame_name(FrameType type);

}  // namespace gradrail::transport::tcp
