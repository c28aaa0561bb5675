#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::transport::ucx {

// Messages of the two peers over the side channel, the tcp connection beside the UCX endpoint: frames, one a tcp
// message.
//
//   0      4         6      7      8
//   +------+---------+------+------+- - - - -
//   |"gRux"| version | kind | more | text
//   +------+---------+------+------+- - - - -
//
// handshake: the first frame of each side. Its text (below) spans as many frames as necessary; more = 1 in all but the
// last.
// refused: the answer to a handshake that cannot be accepted. disconnect: before a side closes. Text: the reason, for
// people.
//
//   handshake:  context u64 | connection u32 | token u64 | UCX major u16 | minor u16 | crc32c of all else u32 | worker
//   address

enum class FrameKind : uint8_t { handshake = 1, refused, disconnect };

inline constexpr uint16_t kProtocolVersion = 1;
/// UCX's address of a worker grows with the devices of the host; a few KiB are much.
inline constexpr size_t kMaxHandshakeBytes = 64 * 1024;

struct Frame {
  FrameKind kind = FrameKind::handshake;
  bool more = false;
  std::string_view text;
};

struct Handshake {
  uint64_t context = 0;     ///< names the sender's Context: keys name their owner
  uint32_t connection = 0;  ///< number that the other end must write into the header of all its messages
  uint64_t token = 0;       ///< the proof that it is the other end
  uint16_t ucx_major = 0;
  uint16_t ucx_minor = 0;
  std::string worker_address;
};

/// Ready to be sent one by one, none longer than max_frame_bytes.
std::vector<std::string> frames_of(FrameKind kind, std::string_view text, size_t max_frame_bytes);

/// Errors  DATA_LOSS: not a frame. FAILED_PRECONDITION: of another version of this protocol.
absl::StatusOr<Frame> parse_frame(std::string_view bytes);

std::string encode(const Handshake& handshake);

/// Parses a handshake.
/// Errors  DATA_LOSS: cut short, damaged or without an address. FAILED_PRECONDITION: a UCX that is incompatible with
///         ours.
absl::StatusOr<Handshake> parse_handshake(std::string_view text, uint16_t own_ucx_major, uint16_t own_ucx_minor);

}  // namespace gradrail::transport::ucx
