#include "ps/admission/connection_proof.h"

#include <cstring>
#include <utility>

#include "base/random_bits.h"
#include "ps/protocol/mac.h"

namespace gradrail::ps {
namespace {

// 128 bits each: no value repeats by chance during a run.
constexpr size_t kClientChallengeBytes = 16;
constexpr size_t kRandomBytes = 16;
// 128 bits: a challenge is valid for a minute, and a guess needs one connection.
constexpr size_t kOwnMacBytes = 16;
constexpr size_t kMacBytes = 32;
constexpr size_t kFreshBytes = sizeof(int64_t) + kRandomBytes;
constexpr size_t kChallengeBytes = kFreshBytes + kOwnMacBytes;
/// Longest time from a challenge to its use: an attacker cannot collect challenges for later.
constexpr auto kLifetime = std::chrono::minutes(1);

absl::Status refused(const char* why) { return absl::UnauthenticatedError(why); }

}  // namespace

std::string new_client_challenge() { return random_bytes(kClientChallengeBytes); }

absl::StatusOr<std::string> prove_connection(const std::string& secret, std::string_view client_challenge,
                                             std::string_view challenge, std::string_view answer) {
  if (secret.empty()) {
    if (challenge.empty()) return std::string();
    return refused("this job has a secret: give --secret-file");
  }
  if (challenge.empty()) return refused("has no secret, and this task has one: give --secret-file to all or to none");
  // "ps" separates this MAC from that of a proof: an answer cannot be used as a proof.
  if (!same_bytes(answer, mac_of(secret, {"ps", client_challenge, challenge})))
    return refused("does not have this job's secret: is its --secret-file another one?");
  return std::string(challenge) + mac_of(secret, {"connection", challenge});
}

std::string refused_proof(const std::string& secret, std::string_view challenge) {
  if (secret.empty()) return "";
  return std::string(challenge) + random_bytes(challenge.empty() ? kChallengeBytes + kMacBytes : kMacBytes);
}

ConnectionChecker::ConnectionChecker(std::string secret)
    : secret_(std::move(secret)), own_key_(random_bytes(kMacBytes)) {}

std::string ConnectionChecker::new_challenge() const {
  if (!has_secret()) return "";
  // The challenge carries its own time and MAC, so that the server keeps nothing for it before its use. The time is
  // that of this process: only this process checks it.
  const int64_t now = Clock::now().time_since_epoch().count();
  const std::string fresh = std::string(reinterpret_cast<const char*>(&now), sizeof(now)) + random_bytes(kRandomBytes);
  return fresh + mac_of(own_key_, {fresh}).substr(0, kOwnMacBytes);
}

std::string ConnectionChecker::answer(std::string_view client_challenge, std::string_view challenge) const {
  return has_secret() ? mac_of(secret_, {"ps", client_challenge, challenge}) : "";
}

absl::Status ConnectionChecker::check(std::string_view proof, TimePoint now) {
  if (!has_secret() && proof.empty()) return absl::OkStatus();
  if (!has_secret()) return refused("it has a secret, and this process has none: give --secret-file to all or to none");
  if (proof.empty()) return refused("this job has a secret: give --secret-file");
  // This check precedes the cuts: the lengths of the parts below are then exact.
  if (proof.size() != kChallengeBytes + kMacBytes) return refused("the proof has a wrong length");
  const std::string_view challenge = proof.substr(0, kChallengeBytes);
  const std::string_view fresh = challenge.substr(0, kFreshBytes);
  if (!same_bytes(challenge.substr(kFreshBytes), std::string_view(mac_of(own_key_, {fresh})).substr(0, kOwnMacBytes)))
    return refused("the challenge is not of this process");
  if (!same_bytes(proof.substr(kChallengeBytes), mac_of(secret_, {"connection", challenge})))
    return refused("this job's secret is another one: give all tasks the same --secret-file");
  int64_t ticks = 0;
  std::memcpy(&ticks, fresh.data(), sizeof(ticks));
  const TimePoint issued{Duration(ticks)};
  if (now - issued > kLifetime) return refused("the challenge is too old");
  // A challenge that is too old is refused by its time and needs no entry. Only proven connections add entries.
  std::erase_if(used_, [now](const auto& each) { return now - each.second > kLifetime; });
  if (!used_.emplace(challenge, issued).second) return refused("this proof was used before");
  return absl::OkStatus();
}

}  // namespace gradrail::ps
