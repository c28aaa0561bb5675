#include "ps/protocol/call_proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/random_bits.h"

namespace gradrail::ps {
namespace {

// 128 bits each: no value repeats by chance during a run.
constexpr size_t kClientChallengeBytes = 16;
constexpr size_t kRandomBytes = 16;
constexpr size_t kTokenBytes = 16;
// 128 bits: a challenge is valid for a minute, and a guess needs one call.
constexpr size_t kOwnMacBytes = 16;
constexpr size_t kMacBytes = 32;
constexpr size_t kChallengeBytes = sizeof(int64_t) + kRandomBytes + kOwnMacBytes;
constexpr size_t kProofBytes = kChallengeBytes + sizeof(uint64_t) + kMacBytes;
/// Longest time from a challenge to its first use: an attacker cannot collect challenges for later.
constexpr auto kFirstUse = std::chrono::minutes(1);
/// Links of one ps that have made good calls. Beyond it, the link that was silent longest has to be introduced again.
constexpr size_t kMostLinks = 1 << 16;

/// In host order, which is little-endian on every supported host.
template <typename T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

template <typename T>
T value_of(std::string_view bytes) {
  GRADRAIL_CHECK(bytes.size() >= sizeof(T));
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

absl::Status refused(const char* why) { return absl::UnauthenticatedError(why); }

}  // namespace

std::string mac_of(std::string_view key, std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) {
    text += bytes_of<uint64_t>(part.size());
    text += part;
  }
  std::string mac(kMacBytes, '\0');
  unsigned int length = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
           text.size(), reinterpret_cast<unsigned char*>(mac.data()), &length);
  GRADRAIL_CHECK(done != nullptr && length == kMacBytes);
  return mac;
}

bool same_bytes(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string new_token() { return random_bytes(kTokenBytes); }

CallProver::CallProver(std::string secret)
    : secret_(std::move(secret)), client_challenge_(random_bytes(kClientChallengeBytes)) {}

absl::Status CallProver::set_up(const std::string& challenge, const std::string& answer) {
  if (secret_.empty())
    // A task without a secret must not join a job that has one: its calls would be refused one by one.
    return challenge.empty() ? absl::OkStatus() : refused("this job has a secret: give --secret-file");
  if (challenge.empty()) return refused("has no secret, and this task has one: give --secret-file to all or to none");
  // "ps" separates this MAC from that of a call: an answer cannot be replayed as a proof.
  if (!same_bytes(answer, mac_of(secret_, {"ps", client_challenge_, challenge})))
    return refused("does not have this job's secret: is its --secret-file another one?");
  challenge_ = challenge;
  // Numbers belong to one challenge: the ps has seen none of the new one.
  number_ = 0;
  return absl::OkStatus();
}

std::string CallProver::proof_of(std::string_view method) {
  if (challenge_.empty()) return "";
  // The MAC covers the method: a recorded proof does not pass for another call.
  const std::string number = bytes_of(number_.fetch_add(1) + 1);
  return challenge_ + number + mac_of(secret_, {"call", challenge_, number, method});
}

CallChecker::CallChecker(std::string secret) : secret_(std::move(secret)), own_key_(random_bytes(kMacBytes)) {}

std::string CallChecker::new_challenge() const {
  if (!has_secret()) return "";
  // The challenge carries its own time and MAC, so that the ps keeps nothing for it before its first use.
  // The time is that of this process: only this process checks it.
  const std::string fresh = bytes_of<int64_t>(Clock::now().time_since_epoch().count()) + random_bytes(kRandomBytes);
  return fresh + mac_of(own_key_, {fresh}).substr(0, kOwnMacBytes);
}

std::string CallChecker::answer(std::string_view client_challenge, std::string_view challenge) const {
  return has_secret() ? mac_of(secret_, {"ps", client_challenge, challenge}) : "";
}

absl::Status CallChecker::check(std::string_view proof, std::string_view method) {
  if (!has_secret()) return absl::OkStatus();
  if (proof.empty()) return refused("this job has a secret: give --secret-file");
  // Before the parts are cut out: the lengths below are then exact.
  if (proof.size() != kProofBytes) return refused("the proof has a wrong length");
  const std::string_view challenge = proof.substr(0, kChallengeBytes);
  const std::string_view number = proof.substr(kChallengeBytes, sizeof(uint64_t));
  TimePoint issued;
  // A restarted ps has another key. This code makes the worker search for the present process.
  if (!is_ours(challenge, issued))
    return absl::UnavailableError("the challenge is not of this parameter server: it was started again");
  if (!same_bytes(proof.substr(kChallengeBytes + sizeof(uint64_t)),
                  mac_of(secret_, {"call", challenge, number, method}))) {
    return refused("this job's secret is another one");
  }
  return take(std::string(challenge), value_of<uint64_t>(number), issued);
}

bool CallChecker::is_ours(std::string_view challenge, TimePoint& issued) const {
  const std::string_view fresh = challenge.substr(0, kChallengeBytes - kOwnMacBytes);
  // Read before the MAC is checked; the caller uses it only if the MAC is right.
  issued = TimePoint(Duration(value_of<int64_t>(fresh)));
  return same_bytes(challenge.substr(fresh.size()),
                    std::string_view(mac_of(own_key_, {fresh})).substr(0, kOwnMacBytes));
}

absl::Status CallChecker::take(const std::string& challenge, uint64_t number, TimePoint issued) {
  constexpr uint64_t kWindow = 64;  // calls of one link may overtake each other, though not by as many
  const TimePoint now = Clock::now();
  MutexLock lock(mutex_);
  auto place = used_.find(challenge);
  if (place == used_.end()) {
    // Only the first use: a link works as long as its process runs.
    if (now - issued > kFirstUse) return refused("the challenge is too old");
    // Only proven calls come here: an attacker without the secret cannot displace a link.
    if (used_.size() >= kMostLinks) {
      used_.erase(std::min_element(used_.begin(), used_.end(),
                                   [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
    }
    place = used_.emplace(challenge, Numbers{}).first;
  }
  Numbers& numbers = place->second;
  // min(): a number above the highest is not behind, and the difference is unsigned.
  const uint64_t behind = numbers.highest - std::min(numbers.highest, number);
  if (number == 0 || behind >= kWindow || (number <= numbers.highest && (numbers.seen >> behind & 1) != 0))
    return refused("this call was made before");
  if (number > numbers.highest) {
    const uint64_t ahead = number - numbers.highest;
    // A shift by 64 or more is undefined.
    numbers.seen = ahead >= kWindow ? 0 : numbers.seen << ahead;
    numbers.highest = number;
  }
  GRADRAIL_CHECK(numbers.highest - number < kWindow);
  numbers.seen |= uint64_t{1} << (numbers.highest - number);
  numbers.used = now;
  return absl::OkStatus();
}

}  // namespace gradrail::ps
