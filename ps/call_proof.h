#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/clock.h"

namespace gradrail::ps {

/// HMAC-SHA256 over `parts`, each with its length in front: 32 bytes.
std::string mac_of(std::string_view key, std::initializer_list<std::string_view> parts);
/// In a time that does not tell where they differ.
bool same_bytes(std::string_view a, std::string_view b);

/// Admits the data connections of who was given it.
std::string new_token();
/// What a member's data connections are proven by: the token of its JoinReply, which only TLS hides, or what only those
/// can make of it who know the secret.
inline std::string data_key(const std::string& secret, const std::string& token) {
  return secret.empty() ? token : mac_of(secret, {"data", token});
}

/// A job's secret never travels. A ps gives each link a challenge (Describe) and shows that it knows the secret by an
/// answer to the worker's question; from then on each call carries
///     challenge | number | HMAC-SHA256(secret, challenge, number, method)
/// and a number is good for one call: what somebody has recorded is worth nothing. The bytes of calls are not covered:
/// TLS keeps those out who can change them under way.
///
/// Threads  Any, after set_up().
class CallProver {
 public:
  explicit CallProver(std::string secret);

  const std::string& question() const { return question_; }
  /// What the ps said to it. Errors  UNAUTHENTICATED: it does not know the secret, or there is one on one side only.
  absl::Status set_up(const std::string& challenge, const std::string& answer);
  /// "": there is no secret.
  std::string proof_of(std::string_view method);

 private:
  const std::string secret_;
  const std::string question_;
  std::string challenge_;
  std::atomic<uint64_t> number_ = 0;
};

/// The ps' side. Threads  Any.
class CallChecker {
 public:
  explicit CallChecker(std::string secret);

  bool has_secret() const { return !secret_.empty(); }
  /// Nothing is kept of it before it was used well: asking for many costs the ps no memory.
  std::string new_challenge() const;
  std::string answer(std::string_view question, std::string_view challenge) const;
  /// Errors  UNAUTHENTICATED; UNAVAILABLE: the challenge is none of this process. Always OK without a secret.
  absl::Status check(std::string_view proof, std::string_view method);

 private:
  struct Numbers {
    uint64_t highest = 0;
    uint64_t seen = 0;  ///< bit i: highest - i
    TimePoint used;
  };
  bool is_ours(std::string_view challenge, TimePoint& issued) const;
  absl::Status take(const std::string& challenge, uint64_t number, TimePoint issued);

  const std::string secret_;
  const std::string own_key_;
  std::mutex mutex_;
  std::map<std::string, Numbers> used_;  ///< challenge → its numbers
};

}  // namespace gradrail::ps
