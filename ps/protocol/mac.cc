#include "ps/protocol/mac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstdint>

#include "base/check.h"
#include "base/random_bits.h"

namespace gradrail::ps {
namespace {

// 128 bits: no value repeats by chance during a run.
constexpr size_t kTokenBytes = 16;
constexpr size_t kMacBytes = 32;

/// Length of a part in host order, which is little-endian on every supported host.
std::string length_of(std::string_view part) {
  const uint64_t length = part.size();
  return {reinterpret_cast<const char*>(&length), sizeof(length)};
}

}  // namespace

std::string mac_of(std::string_view key, std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) {
    text += length_of(part);
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

std::optional<transport::Encryption> data_encryption(const Security& security) {
  if (!security.encrypt_data) return std::nullopt;
  // The key is a derived one: transports do not get the secret.
  return transport::Encryption{security.secret.empty() ? "" : mac_of(security.secret, {"encrypted data"})};
}

std::string new_token() { return random_bytes(kTokenBytes); }

}  // namespace gradrail::ps
