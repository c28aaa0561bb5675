#include "worker/publish/message.h"

#include <algorithm>
#include <cstring>

#include "base/little_endian.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/mac.h"

namespace gradrail::publish {
namespace {

constexpr size_t kMaxEndBytes = 4096;

absl::Status wrong(std::string_view what) {
  return absl::DataLossError(fmt::format("a {} message has a wrong form", what));
}

Digest digest_from(const char* from) {
  Digest digest;
  std::memcpy(digest.data(), from, digest.size());
  return digest;
}

std::string mac_of(std::string_view key, uint64_t number, std::string_view fields) {
  std::string place;
  append_le(place, number);
  return ps::mac_of(key, {"version", place, fields});
}

}  // namespace

std::string session_key(std::string_view secret, std::string_view publisher_nonce, std::string_view reader_nonce) {
  return ps::mac_of(secret, {"publish", publisher_nonce, reader_nonce});
}

std::string proof_of(std::string_view key, std::string_view side) { return ps::mac_of(key, {side}); }

std::string frame_text(FrameType type, std::string_view payload) {
  std::string text;
  append_le(text, static_cast<uint32_t>(type));
  append_le(text, static_cast<uint32_t>(payload.size()));
  text += payload;
  return text;
}

absl::StatusOr<Frame> decode_frame(std::string_view text) {
  if (text.size() != kFrameBytes) return wrong("frame");
  const Frame frame{.type = static_cast<FrameType>(load_le<uint32_t>(text.data())),
                    .bytes = load_le<uint32_t>(text.data() + 4)};
  switch (frame.type) {
    case FrameType::welcome:
      if (frame.bytes > kProofBytes + 8 && frame.bytes <= kMaxPayloadBytes) return frame;
      break;
    case FrameType::version:
      if (frame.bytes == kVersionBytes) return frame;
      break;
    case FrameType::idle:
      if (frame.bytes == 0) return frame;
      break;
    case FrameType::end:
      if (frame.bytes >= 4 && frame.bytes <= kMaxEndBytes) return frame;
      break;
  }
  return wrong("frame");
}

std::string encode(const Welcome& welcome) {
  std::string text = welcome.proof;
  append_le(text, welcome.run);
  return text + welcome.model;
}

absl::StatusOr<Welcome> decode_welcome(std::string_view payload) {
  if (payload.size() < kProofBytes + 8) return wrong("welcome");
  return Welcome{.proof = std::string(payload.substr(0, kProofBytes)),
                 .run = load_le<uint64_t>(payload.data() + kProofBytes),
                 .model = std::string(payload.substr(kProofBytes + 8))};
}

std::string encode(const Request& request) {
  std::string text;
  append_le(text, static_cast<uint32_t>(request.follow));
  append_le(text, uint32_t{request.have.has_value()});
  const Have have = request.have.value_or(Have{});
  append_le(text, have.version);
  text += text_of(have.digest);
  return text;
}

absl::StatusOr<Request> decode_request(std::string_view text) {
  if (text.size() != kRequestBytes) return wrong("request");
  const auto follow = load_le<uint32_t>(text.data());
  const auto has = load_le<uint32_t>(text.data() + 4);
  if (follow > static_cast<uint32_t>(Follow::each) || has > 1) return wrong("request");
  Request request{.follow = static_cast<Follow>(follow)};
  if (has == 1)
    request.have = Have{.version = load_le<uint64_t>(text.data() + 8), .digest = digest_from(text.data() + 16)};
  return request;
}

std::string encode(const VersionHeader& header, std::string_view key, uint64_t number) {
  std::string text;
  append_le(text, header.version);
  append_le(text, header.published_unix_ns);
  text += text_of(header.digest);
  append_le(text, uint32_t{header.is_delta});
  append_le(text, header.body_bytes);
  return text + mac_of(key, number, text);
}

absl::StatusOr<VersionHeader> decode_version(std::string_view payload, std::string_view key, uint64_t number) {
  if (payload.size() != kVersionBytes) return wrong("version");
  const std::string_view fields = payload.substr(0, kVersionBytes - kProofBytes);
  if (!ps::same_bytes(payload.substr(fields.size()), mac_of(key, number, fields)))
    return absl::DataLossError("a version message has a wrong authentication code");
  const auto kind = load_le<uint32_t>(fields.data() + 48);
  if (kind > 1) return wrong("version");
  return VersionHeader{.version = load_le<uint64_t>(fields.data()),
                       .published_unix_ns = load_le<uint64_t>(fields.data() + 8),
                       .digest = digest_from(fields.data() + 16),
                       .is_delta = kind == 1,
                       .body_bytes = load_le<uint64_t>(fields.data() + 52)};
}

std::string encode_end(const absl::Status& reason) {
  std::string text;
  append_le(text, static_cast<uint32_t>(reason.raw_code()));
  text += message_of(reason).substr(0, kMaxEndBytes - 4);
  return text;
}

absl::Status decode_end(std::string_view payload) {
  if (payload.size() < 4) return wrong("end");
  const auto code = load_le<uint32_t>(payload.data());
  const std::string text = escaped(payload.substr(4));
  // A peer that is not authenticated may send any number.
  const bool known = code > 0 && code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  return {known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kAborted, text};
}

}  // namespace gradrail::publish
