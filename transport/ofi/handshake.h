#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/ofi/memory_region.h"

namespace gradrail::transport::ofi {

// Messages of two peers over the side channel, the tcp connection beside their endpoints; one message of tcp each.
// Little endian; text is a u16 length and its bytes.
//
//   type u8
//   1 hello     magic u64 | version u32 | provider text | immediate bits u8 | message bytes u32 | receives u32 |
//               token u64 | mailbox key u64 | mailbox base u64 | endpoint address text
//   2 request   number u32 | region key text                   opens a region: the asker's RemoteRegion
//   3 grant     number u32 | device key u64 | base u64         the answer; a refusal is a disconnect
//   4 disconnect  reason text                                  the last, for people
//   5 probe  number u32                                     the device is silent: does the peer still poll?
//   6 reply     number u32                                     to the probe of this number
//
// The connecting side sends hello first and may send requests immediately; the other side answers with its own hello.
// Magic and version have the same position in every version, and the disconnect message has the same layout.

inline constexpr uint64_t kHelloMagic = 0x6966'6f6c'6961'7267;  // "grailofi"
inline constexpr uint32_t kProtocolVersion = 2;
/// libfabric's addresses are at most a few dozen bytes.
inline constexpr size_t kMaxAddressBytes = 512;
inline constexpr size_t kMaxReasonBytes = 512;

struct EndpointHello {
  uint32_t version = kProtocolVersion;
  std::string provider;
  uint8_t immediate_bits = 0;
  uint32_t message_bytes = 0;
  uint32_t receives = 0;     ///< messages that the other may send before it receives credits
  uint64_t token = 0;        ///< every message to the sender of this hello carries it
  uint64_t mailbox_key = 0;  ///< place for puts of no bytes
  uint64_t mailbox_base = 0;
  std::string address;
};
struct Request {
  uint32_t number = 0;
  RegionKey key;
};
struct Grant {
  uint32_t number = 0;
  uint64_t key = 0;
  uint64_t base = 0;
};
struct Disconnect {
  std::string reason;
};
struct Probe {
  uint32_t number = 0;
};
struct Reply {
  uint32_t number = 0;
};
using ControlMessage = std::variant<EndpointHello, Request, Grant, Disconnect, Probe, Reply>;

std::string encode(const EndpointHello& hello);
std::string encode(const Request& request);
std::string encode(const Grant& grant);
/// A reason that is too long is cut.
std::string encode(const Disconnect& disconnect);
std::string encode(const Probe& probe);
std::string encode(const Reply& reply);

/// Decodes a message.
/// Errors  DATA_LOSS: no message of this transport. FAILED_PRECONDITION: a hello of another version.
absl::StatusOr<ControlMessage> decode(absl::Span<const std::byte> message);

/// Whether the two ends can communicate.
/// Errors  FAILED_PRECONDITION: the difference, and the remedy.
absl::Status compare(const EndpointHello& ours, const EndpointHello& theirs);

}  // namespace gradrail::transport::ofi
