#include "ps/admission/old_client.h"

#include <array>

#include "base/check.h"

namespace gradrail::ps {
namespace {

// Frame types and flags of RFC 9113.
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kAck = 1;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;
constexpr size_t kFrameHeaderBytes = 9;
constexpr size_t kLongestString = 126;  // a longer HPACK string has a length of several bytes
constexpr std::string_view kFailedPrecondition = "9";

uint8_t byte_at(std::string_view bytes, size_t i) { return static_cast<uint8_t>(bytes[i]); }

std::string frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view content) {
  GRADRAIL_CHECK(content.size() < 1 << 16);
  const std::array<uint8_t, kFrameHeaderBytes> header = {0,
                                                         static_cast<uint8_t>(content.size() >> 8),
                                                         static_cast<uint8_t>(content.size()),
                                                         type,
                                                         flags,
                                                         static_cast<uint8_t>(stream >> 24),
                                                         static_cast<uint8_t>(stream >> 16),
                                                         static_cast<uint8_t>(stream >> 8),
                                                         static_cast<uint8_t>(stream)};
  return std::string(header.begin(), header.end()).append(content);
}

std::string hpack_string(std::string_view text) {
  GRADRAIL_CHECK(text.size() <= kLongestString);
  return std::string(1, static_cast<char>(text.size())).append(text);
}

/// A header field that enters no table of HPACK.
std::string field(std::string_view name, std::string_view value) {
  return std::string(1, '\0') + hpack_string(name) + hpack_string(value);
}

}  // namespace

OldClient kind_of_old_client(std::string_view begin) {
  if (begin.starts_with(kHttp2Preface)) return OldClient::http2;
  if (begin.starts_with(kTlsBegin)) return OldClient::tls;
  const bool may_become_one = kHttp2Preface.starts_with(begin) || kTlsBegin.starts_with(begin);
  return may_become_one ? OldClient::undecided : OldClient::none;
}

std::string http2_settings() { return frame(kSettings, 0, 0, ""); }

std::optional<uint32_t> first_call(std::string_view bytes) {
  GRADRAIL_CHECK(bytes.substr(0, kHttp2Preface.size()) == kHttp2Preface);
  for (size_t at = kHttp2Preface.size(); at + kFrameHeaderBytes <= bytes.size();) {
    const size_t length =
        size_t{byte_at(bytes, at)} << 16 | size_t{byte_at(bytes, at + 1)} << 8 | byte_at(bytes, at + 2);
    if (byte_at(bytes, at + 3) == kHeaders) {
      // The highest bit is reserved.
      return uint32_t{byte_at(bytes, at + 5)} % 128 << 24 | uint32_t{byte_at(bytes, at + 6)} << 16 |
             uint32_t{byte_at(bytes, at + 7)} << 8 | byte_at(bytes, at + 8);
    }
    at += kFrameHeaderBytes + length;
  }
  return std::nullopt;
}

std::string end_of_call(uint32_t stream, std::string_view message) {
  constexpr std::string_view kStatus200 = "\x88";  // entry 8 of HPACK's static table
  const std::string fields = std::string(kStatus200) + field("content-type", "application/grpc") +
                             field("grpc-status", kFailedPrecondition) + field("grpc-message", message);
  return frame(kSettings, kAck, 0, "") + frame(kHeaders, kEndStream | kEndHeaders, stream, fields);
}

std::string tls_alert() {
  // An alert record of TLS 1.2: fatal, protocol_version.
  constexpr std::array<uint8_t, 7> kAlert = {21, 3, 3, 0, 2, 2, 70};
  return std::string(kAlert.begin(), kAlert.end());
}

bool is_http2_server(std::string_view answer) {
  return answer.size() >= kFrameHeaderBytes && byte_at(answer, 3) == kSettings &&
         answer.substr(5, 4) == std::string_view("\0\0\0\0", 4);
}

}  // namespace gradrail::ps
