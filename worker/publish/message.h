#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/publish/version_store.h"

namespace gradrail::publish {

/// The messages between a publisher and a reader, over one TCP connection. All numbers are little-endian.
///
///   publisher                                       reader
///   [magic 8][nonce 32]               ──challenge──▶
///                                     ◀──hello──────  [magic 8][nonce 32][proof 32]
///   [proof 32][run u64][model text]   ──welcome────▶
///                                     ◀──request────  [follow u32][has u32][version u64][digest 32]
///   [version u64][unix ns u64][digest 32][kind u32][body u64][mac 32]
///                                     ──version────▶
///   body: all bits, or deltas         ────────────▶
///                                     ◀──request──── only after a version: this is the flow control
///
/// A frame [type u32][bytes u32] precedes welcome, version, idle (no payload) and end ([code u32][text]). `idle` shows
/// a reader with a waiting request that the publisher is running. Each end proves that it has the secret, with a key
/// that both nonces determine. The same key authenticates the header of each version, and with its digest all bits. A
/// job without a secret has the empty secret. Nothing is encrypted.
///
/// Source  Bellare and Rogaway 1993 (mutual authentication by nonces and a message authentication code).

enum class FrameType : uint32_t { welcome = 1, version = 2, idle = 3, end = 4 };

inline constexpr std::string_view kMagic = "GRADPUB1";
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kChallengeBytes = 8 + kNonceBytes;
inline constexpr size_t kHelloBytes = 8 + kNonceBytes + kProofBytes;
inline constexpr size_t kRequestBytes = 4 + 4 + 8 + 32;
inline constexpr size_t kFrameBytes = 8;
inline constexpr size_t kVersionBytes = 8 + 8 + 32 + 4 + 8 + kProofBytes;
inline constexpr size_t kMaxPayloadBytes = size_t{64} << 20;  // the text of a model with a million tensors

struct Frame {
  FrameType type{};
  size_t bytes = 0;
};

struct Welcome {
  std::string proof;
  uint64_t run = 0;
  std::string model;
};

/// The header of a version.
struct VersionHeader {
  uint64_t version = 0;
  uint64_t published_unix_ns = 0;
  Digest digest{};
  bool is_delta = false;
  uint64_t body_bytes = 0;
};

struct Request {
  Follow follow = Follow::newest;
  std::optional<Have> have;
};

/// The key of one connection.
std::string session_key(std::string_view secret, std::string_view publisher_nonce, std::string_view reader_nonce);
/// The proof of one end that it has the key. `side` is "publisher" or "reader".
std::string proof_of(std::string_view key, std::string_view side);

std::string frame_text(FrameType type, std::string_view payload);
/// Errors  DATA_LOSS: unknown type, or more bytes than the type permits.
absl::StatusOr<Frame> decode_frame(std::string_view text);

std::string encode(const Welcome& welcome);
/// Errors  DATA_LOSS: not such a message; the next functions have the same error.
absl::StatusOr<Welcome> decode_welcome(std::string_view payload);

std::string encode(const Request& request);
absl::StatusOr<Request> decode_request(std::string_view text);

/// `number` counts the versions of the connection: a header that arrives twice has a wrong mac.
std::string encode(const VersionHeader& header, std::string_view key, uint64_t number);
absl::StatusOr<VersionHeader> decode_version(std::string_view payload, std::string_view key, uint64_t number);

/// The reason for the end of a connection.
std::string encode_end(const absl::Status& reason);
absl::Status decode_end(std::string_view payload);

}  // namespace gradrail::publish
