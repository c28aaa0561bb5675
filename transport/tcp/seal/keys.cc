#include "transport/tcp/seal/keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"
#include "fmt/format.h"

namespace gradrail::transport::tcp::seal {
namespace {

constexpr std::string_view kLabel = "gradrail sealed tcp 1 ";

const unsigned char* raw(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

void hmac(std::string_view key, std::string_view text, unsigned char* out) {
  unsigned int length = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), raw(text), text.size(), out, &length);
  GRADRAIL_CHECK(done != nullptr && length == kKeyBytes);
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Key::~Key() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

KeyPair::KeyPair(Handle pair) : pair_(std::move(pair)) {
  GRADRAIL_CHECK(pair_ != nullptr);
  size_t length = kKeyBytes;
  auto* const out = reinterpret_cast<unsigned char*>(public_key_.data());
  GRADRAIL_CHECK(EVP_PKEY_get_raw_public_key(pair_.get(), out, &length) == 1 && length == kKeyBytes);
}

KeyPair KeyPair::generate() { return KeyPair({EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519"), EVP_PKEY_free}); }

KeyPair KeyPair::from_private(std::string_view private_key) {
  return KeyPair(
      {EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, raw(private_key), private_key.size()), EVP_PKEY_free});
}

absl::StatusOr<Key> KeyPair::agree(const PublicKey& peer) const {
  const Handle theirs(EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr,
                                                  reinterpret_cast<const unsigned char*>(peer.data()), peer.size()),
                      EVP_PKEY_free);
  const std::unique_ptr<EVP_PKEY_CTX, void (*)(EVP_PKEY_CTX*)> context(EVP_PKEY_CTX_new(pair_.get(), nullptr),
                                                                       EVP_PKEY_CTX_free);
  GRADRAIL_CHECK(theirs != nullptr && context != nullptr && EVP_PKEY_derive_init(context.get()) == 1);
  Key shared;
  size_t length = kKeyBytes;
  // OpenSSL refuses a result of zeros (RFC 7748, section 6.1).
  if (EVP_PKEY_derive_set_peer(context.get(), theirs.get()) != 1 ||
      EVP_PKEY_derive(context.get(), reinterpret_cast<unsigned char*>(shared.data()), &length) != 1 ||
      length != kKeyBytes) {
    return absl::InvalidArgumentError("the peer's public key is not valid");
  }
  return shared;
}

Key hkdf_extract(std::string_view salt, std::string_view input) {
  Key key;
  hmac(salt, input, reinterpret_cast<unsigned char*>(key.data()));
  return key;
}

std::string hkdf_expand(std::string_view key, std::string_view info, size_t bytes) {
  GRADRAIL_CHECK(bytes <= 255 * kKeyBytes);
  std::string out;
  std::string block;
  for (char count = 1; out.size() < bytes; ++count) {
    const std::string text = fmt::format("{}{}{}", block, info, count);
    block.resize(kKeyBytes);
    hmac(key, text, reinterpret_cast<unsigned char*>(block.data()));
    out += block;
  }
  OPENSSL_cleanse(block.data(), block.size());
  out.resize(bytes);
  return out;
}

Key hkdf_expand_key(std::string_view key, std::string_view info) {
  std::string expanded = hkdf_expand(key, info, kKeyBytes);
  Key out;
  expanded.copy(reinterpret_cast<char*>(out.data()), kKeyBytes);
  OPENSSL_cleanse(expanded.data(), expanded.size());
  return out;
}

std::string sha256(std::initializer_list<std::string_view> parts) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  GRADRAIL_CHECK(context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  for (const std::string_view part : parts)
    GRADRAIL_CHECK(EVP_DigestUpdate(context.get(), part.data(), part.size()) == 1);
  std::string out(kKeyBytes, '\0');
  GRADRAIL_CHECK(EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(out.data()), nullptr) == 1);
  return out;
}

DirectionKeys derive_directions(std::string_view shared_key, const Key& with_static, const Key& with_fresh,
                                std::string_view transcript) {
  std::string input = fmt::format("{}{}", with_static.text(), with_fresh.text());
  const Key secret = hkdf_extract(shared_key, input);
  OPENSSL_cleanse(input.data(), input.size());
  const auto direction = [&](std::string_view name) {
    return hkdf_expand_key(secret.text(), fmt::format("{}{} {}", kLabel, name, transcript));
  };
  return {direction("connecting"), direction("listening")};
}

std::string address_with_key(std::string_view address, const PublicKey& key) {
  std::string text = fmt::format("{}#", address);
  for (const std::byte byte : key) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

absl::StatusOr<SealedAddress> parse_sealed_address(std::string_view text) {
  const size_t mark = text.find('#');
  SealedAddress parsed{.address = std::string(text.substr(0, mark))};
  if (mark == std::string_view::npos) return parsed;
  const std::string_view digits = text.substr(mark + 1);
  parsed.has_key = digits.size() == 2 * kKeyBytes;
  for (size_t i = 0; parsed.has_key && i < kKeyBytes; ++i) {
    const int high = digit(digits[2 * i]);
    const int low = digit(digits[2 * i + 1]);
    parsed.has_key = high >= 0 && low >= 0;
    parsed.key[i] = static_cast<std::byte>(high * 16 + low);
  }
  if (!parsed.has_key) return absl::InvalidArgumentError("tcp: the address has no valid public key behind '#'");
  return parsed;
}

}  // namespace gradrail::transport::tcp::seal
