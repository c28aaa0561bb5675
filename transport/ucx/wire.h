#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gradrail::transport::ucx {

// All that travels over UCX is an active message: a header, and the payload as its data. Little endian.
//
//   0     1     2      4          8         16         20      24           32       40      48       56
//   +-----+-----+------+----------+---------+----------+-------+------------+--------+-------+--------+
//   |kind |flags| zero |connection| token   | sequence | region|region token| offset | value | length |
//   +-----+-----+------+----------+---------+----------+-------+------------+--------+-------+--------+
//
//   kind          region, region token   offset           value        payload
//   put           the target's key       in the region    immediate    bytes for the region
//   message       0                      0                0            the message
//   get_request   the source's key       in the region    get number   -            (length: of the request)
//   get_data      0                      0                get number   bytes of the region
//   hello         0                      0                0            -
//
// connection and token are those that the receiver gave in its handshake: one UCX worker serves all peers, and these
// fields name the sender. sequence counts puts and, separately, messages. flags: bit 0 of a put, notify with `value`;
// bit 1 of a get_request, answer by rendezvous. length is only in a get_request. The hello is the first message of each
// side: it confirms the path.

enum class MessageKind : uint8_t { put = 1, message, get_request, get_data, hello };

// Data from or to the memory of a GPU travels by rendezvous, however short: then the devices move it. No processor,
// neither in UCX's code nor in ours, touches an address that is not the host's.

/// UCX's number for our handler; the only one.
inline constexpr unsigned kActiveMessage = 1;
inline constexpr size_t kHeaderBytes = 48;
inline constexpr size_t kGetRequestHeaderBytes = 56;
/// Control messages carry region keys and short reports, as over tcp.
inline constexpr size_t kMaxMessageBytes = 4096;

/// A limit that both peers apply, because neither holds memory for more. A connection has at most this many puts in
/// flight beyond the oldest unfinished put of the sender.
inline constexpr uint32_t kPutWindow = 256;
inline constexpr uint32_t kMaxGets = 64;

struct Header {
  MessageKind kind = MessageKind::put;
  bool notify = false;
  bool wants_rendezvous = false;
  uint32_t connection = 0;
  uint64_t token = 0;
  uint32_t sequence = 0;
  uint32_t region = 0;
  uint64_t region_token = 0;
  uint64_t offset = 0;
  uint64_t value = 0;
  uint64_t length = 0;

  size_t bytes() const { return kind == MessageKind::get_request ? kGetRequestHeaderBytes : kHeaderBytes; }
};

using HeaderBytes = std::array<std::byte, kGetRequestHeaderBytes>;

HeaderBytes encode(const Header& header);

/// Errors  DATA_LOSS: not a header that any sender of this version makes.
absl::StatusOr<Header> decode(absl::Span<const std::byte> bytes);

std::string_view kind_name(MessageKind kind);

}  // namespace gradrail::transport::ucx
