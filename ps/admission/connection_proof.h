#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gradrail/clock.h"

namespace gradrail::ps {

// Both ends of a connection of the control plane prove that they have the job's secret. The connection never carries
// the secret itself.
//
//   client → server   client challenge: random bytes
//   server → client   challenge, answer = HMAC-SHA256(secret, "ps", client challenge, challenge)
//   client → server   proof = challenge | HMAC-SHA256(secret, "connection", challenge)
//
// A challenge is valid for one connection, so a recorded proof cannot be replayed. The proof does not cover the bytes
// of the connection, and an attacker on the way can use it for another connection. With TLS each call therefore carries
// a MAC of the secret as well (ps/protocol/security.cc).

std::string new_client_challenge();

/// The client's proof; "" without a secret. It checks the server first: a process without the secret gets no proof.
/// Errors  UNAUTHENTICATED: the server does not have the secret, or only one side has a secret.
absl::StatusOr<std::string> prove_connection(const std::string& secret, std::string_view client_challenge,
                                             std::string_view challenge, std::string_view answer);

/// A proof that the server refuses: random bytes with the length of a proof, or "" without a secret. A client that
/// refuses the server sends it, so that the server can log the reason. It contains nothing of the secret.
std::string refused_proof(const std::string& secret, std::string_view challenge);

/// The server's side.
/// Threads  One.
class ConnectionChecker {
 public:
  explicit ConnectionChecker(std::string secret);

  bool has_secret() const { return !secret_.empty(); }
  /// "" without a secret. A challenge occupies no memory before its use: requests for many of them cost nothing.
  std::string new_challenge() const;
  std::string answer(std::string_view client_challenge, std::string_view challenge) const;
  /// Errors  UNAUTHENTICATED: no or a wrong proof, or one that was used; a proof for a server without a secret.
  absl::Status check(std::string_view proof, TimePoint now = Clock::now());

 private:
  const std::string secret_;
  const std::string own_key_;              ///< signs challenges, which is why they need no memory
  std::map<std::string, TimePoint> used_;  ///< time of issue of each challenge
};

}  // namespace gradrail::ps
