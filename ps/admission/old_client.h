#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradrail::ps {

// A client of protocol version 6 or older sends HTTP/2 or TLS immediately, without the request to the gate. It gets the
// reason of the refusal in its own protocol, so that its message names both versions:
//
//   client → gate   preface of HTTP/2
//   gate → client   SETTINGS: gRPC's client sends no call before
//   client → gate   SETTINGS, HEADERS of its first call
//   gate → client   HEADERS with grpc-status and grpc-message, the end of the call

inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// First bytes of a TLS connection: the handshake of TLS 1.0 to 1.3.
inline constexpr std::string_view kTlsBegin = "\x16\x03";

enum class OldClient : uint8_t { none, undecided, http2, tls };
/// `begin` are the first bytes of a connection, at least one. undecided: more bytes are needed.
OldClient kind_of_old_client(std::string_view begin);

/// The first frame of an HTTP/2 server.
std::string http2_settings();
/// The stream of the first HEADERS frame; `bytes` begin with the preface. None: it has not arrived yet.
std::optional<uint32_t> first_call(std::string_view bytes);
/// Ends the call of this stream with FAILED_PRECONDITION. `message` has printable characters without '%', at most 126.
std::string end_of_call(uint32_t stream, std::string_view message);
/// A TLS client reports an alert as "protocol version".
std::string tls_alert();

/// Whether these first bytes of an answer are those of a gRPC server without a gate: SETTINGS of HTTP/2.
bool is_http2_server(std::string_view answer);

}  // namespace gradrail::ps
