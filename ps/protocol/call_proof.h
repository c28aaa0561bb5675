#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace gradrail::ps {

/// HMAC-SHA256 over `parts`, each preceded by its length so that different cuts give different results: 32 bytes.
std::string mac_of(std::string_view key, std::initializer_list<std::string_view> parts);
/// Compares in constant time: the duration does not reveal the first difference.
bool same_bytes(std::string_view a, std::string_view b);

/// Random bytes that admit the data connections of the member that receives them.
std::string new_token();
/// Key that a member's data connections are proven by. Without a secret it is the token of JoinReply, which only TLS
/// hides. With a secret only a task that has the secret can compute it from the token.
inline std::string data_key(const std::string& secret, const std::string& token) {
  return secret.empty() ? token : mac_of(secret, {"data", token});
}

/// A caller's proof that it has the job's secret, which itself never travels. A ps gives each link a challenge
/// (Describe), and proves that it has the secret by an answer to the client challenge. From then on each call carries
///     challenge | number | HMAC-SHA256(secret, challenge, number, method)
/// A number is good for one call, so a recorded call cannot be replayed. The bytes of a call are not covered: TLS
/// protects against an attacker that can change them on the way.
/// Threads  Any, after set_up().
class CallProver {
 public:
  explicit CallProver(std::string secret);

  const std::string& client_challenge() const { return client_challenge_; }
  /// Uses the reply of the ps to the client challenge.
  /// Errors  UNAUTHENTICATED: the ps does not know the secret, or only one side has a secret.
  absl::Status set_up(const std::string& challenge, const std::string& answer);
  /// "": there is no secret.
  std::string proof_of(std::string_view method);

 private:
  const std::string secret_;
  const std::string client_challenge_;
  std::string challenge_;
  std::atomic<uint64_t> number_ = 0;
};

/// The side of the ps.
/// Threads  Any.
class CallChecker {
 public:
  explicit CallChecker(std::string secret);

  bool has_secret() const { return !secret_.empty(); }
  /// A challenge occupies no memory before its first good use: requests for many of them cost the ps nothing.
  std::string new_challenge() const;
  std::string answer(std::string_view client_challenge, std::string_view challenge) const;
  /// Errors  UNAUTHENTICATED: no or a wrong proof. UNAVAILABLE: another process has issued the challenge. Always OK
  ///         without a secret.
  absl::Status check(std::string_view proof, std::string_view method);

 private:
  struct Numbers {
    uint64_t highest = 0;
    uint64_t seen = 0;  ///< bit i: number highest - i was used
    TimePoint used;
  };
  bool is_ours(std::string_view challenge, TimePoint& issued) const;
  absl::Status take(const std::string& challenge, uint64_t number, TimePoint issued);

  const std::string secret_;
  const std::string own_key_;  ///< signs challenges, which is why they need no memory
  Mutex mutex_;
  std::map<std::string, Numbers> used_ ABSL_GUARDED_BY(mutex_);  ///< by challenge
};

}  // namespace gradrail::ps
