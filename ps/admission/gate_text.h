#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace gradrail::ps {

// The texts of HTTP/1.1 that pass at the gate (gate.h). Both ends write base64.
//
//   GET /gradrail/challenge/CLIENT_CHALLENGE      200, and a line "CHALLENGE ANSWER"; the connection ends
//   CONNECT …, with the header gradrail-proof     200: the connection belongs to the server. 403: the reason; it ends

inline constexpr char kChallengePath[] = "/gradrail/challenge/";
inline constexpr char kProofHeader[] = "gradrail-proof";
/// Limit of a request, and of the answer to a challenge. A proof has 98 characters.
inline constexpr size_t kMaxGateTextBytes = 2048;

struct GateRequest {
  bool is_connect = false;
  std::string value;  ///< decoded from base64: the proof of a CONNECT, otherwise the client challenge
};

/// Whether a request of the gate can begin with these bytes. Those of other protocols never do.
bool may_become_request(std::string_view begin);
/// Whether the request has its empty line.
bool is_whole_request(std::string_view text);

/// Errors  UNAUTHENTICATED: a CONNECT with a proof that is not base64. NOT_FOUND: another path.
absl::StatusOr<GateRequest> parse_gate_request(std::string_view text);

struct GateAnswer {
  std::string challenge;
  std::string answer;
};

/// The whole response to a request for a challenge.
/// Errors  FAILED_PRECONDITION: another kind of server.
absl::StatusOr<GateAnswer> parse_gate_answer(std::string_view response);

/// A response that ends its connection.
std::string gate_response(std::string_view status, std::string_view body);
/// The body of the response that parse_gate_answer() reads.
std::string gate_answer_body(const GateAnswer& answer);

}  // namespace gradrail::ps
