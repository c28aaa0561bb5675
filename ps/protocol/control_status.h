#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace gradrail::ps {

/// gRPC's RESOURCE_EXHAUSTED for a server without memory or permission for a further thread.
constexpr const char* kNoThread = "Server Threadpool Exhausted";

/// The cause in gRPC's message about a connection, such as "Connection refused". It is the last part of "failed to
/// connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:2222: …: Connection refused". The caller has the
/// address. All other messages stay as they are.
inline std::string connection_cause(std::string_view message) {
  // A gate accepts each proof once. gRPC connects again with the same proof, and the gate refuses it as a proxy would.
  if (message.find("HTTP proxy returned") != std::string_view::npos) return "the connection was lost";
  constexpr std::pair<std::string_view, const char*> kWords[] = {
      {"Socket closed", "the process there closed the connection or ended"},
      {"Cancelling all calls", "the process there ended"},
      {"keepalive watchdog timeout", "the host there did not answer in time"},
      {"Connection reset by peer", "the connection was reset by the process or the network there"},
      {"Broken pipe", "the process there closed the connection or ended"},
      {"Connection timed out", "the host there did not answer in time"},
      {"Deadline Exceeded", "no answer in time"},
      {kNoThread,
       "the process there could not start a thread: it has too little memory (`ulimit -v`), or too few processes are "
       "permitted (`ulimit -u`, pids.max)"},
  };
  for (const auto& [of_grpc, ours] : kWords) {
    if (message.ends_with(of_grpc)) return ours;
  }
  for (const std::string_view mark :
       {"failed to connect to all addresses", "DNS resolution failed", "ipv4:", "ipv6:", "unix:"}) {
    if (message.find(mark) == std::string_view::npos) continue;
    const size_t at = message.rfind(": ");
    return std::string(at == std::string_view::npos ? message : message.substr(at + 2));
  }
  return std::string(message);
}

// Abseil has gRPC's canonical codes with the same numbers.
// The static casts are safe: the numbers are part of gRPC's wire protocol and never change.
inline grpc::Status to_grpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}
/// A message with another code than those of a lost connection is that of a server, and may contain an address.
inline absl::Status from_grpc(const grpc::Status& status) {
  const bool is_of_grpc = status.error_message() == kNoThread;
  const bool is_lost = is_of_grpc || status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                       status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      is_lost ? connection_cause(status.error_message()) : status.error_message());
}

}  // namespace gradrail::ps
