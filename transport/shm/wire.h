#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "transport/memory_region.h"

/// Messages of two peers over their Unix socket (SOCK_SEQPACKET), one ControlMessage per packet.
/// Both peers run on one host: host byte order, natural alignment.
///
///   connector                                        acceptor
///     hello   {bytes = sizeof(RingPair)}  + ring memfd, connector's bell ──▶
///     ◀── welcome                         + acceptor's bell
///   then from either side:
///     fetch   {key}  ──▶                  requests a region by its key
///     ◀── region {key} + memfd            opened read-only unless the key grants remote_write
///     disconnect {code, text}             the last message; also the answer to a wrong key or a refused hello
///
///    0 magic u32 │ 4 version u16 │ 6 kind u8 │ 7 code u8 │ 8 key (32; bytes at 24) │ 40 text (216, zero padded)
///
/// magic, version, kind, code and text keep their places in every later version: a refusal must be readable.
namespace gradrail::transport::shm {

inline constexpr uint32_t kMagic = 0x53525247;  // "GRRS" in memory
inline constexpr uint16_t kVersion = 1;

/// A region in the form that its owner publishes (MemoryRegion::key) and that the peer requests.
struct RegionKey {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint8_t access = 0;
  uint8_t reserved = 0;
  uint64_t id = 0;
  uint64_t bytes = 0;
  uint64_t token = 0;  ///< random: only a holder of the key can name the region

  bool operator==(const RegionKey&) const = default;
};
static_assert(sizeof(RegionKey) == 32);

std::string encode(const RegionKey& key);
/// Nothing when the bytes are not a key of this transport and version.
std::optional<RegionKey> decode_key(std::string_view bytes);

enum class ControlKind : uint8_t { hello = 1, welcome = 2, fetch = 3, region = 4, disconnect = 5 };

struct ControlMessage {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  ControlKind kind = ControlKind::disconnect;
  uint8_t code = 0;
  RegionKey key;
  char text[216] = {};
};
static_assert(sizeof(ControlMessage) == 256);

/// The most descriptors a packet carries.
inline constexpr size_t kMaxDescriptors = 2;

ControlMessage make_hello();
ControlMessage make_disconnect(const absl::Status& why);
/// The reason in a disconnect message, made printable: a peer's text may hold any bytes.
absl::Status reason_of(const ControlMessage& disconnect);

/// Errors  INVALID_ARGUMENT: not a hello of this version (the message names both).
absl::Status check_hello(const ControlMessage& hello, size_t descriptor_count);

}  // namespace gradrail::transport::shm
