#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

struct evp_pkey_st;

namespace gradrail::transport::tcp::seal {

// Agreement on the keys of one connection. The listening side has a static key pair for the lifetime of its context.
// Its public key is a part of the address, which the control plane authenticates. Both sides make a further key pair
// for each connection:
//
//   connecting side                                      listening side (static key pair s)
//       seal frame: cipher, public key of pair c  ─────▶
//                                                 ◀─────  seal frame: cipher, public key of pair e
//   input      = X25519(c, s) ‖ X25519(c, e)
//   transcript = SHA-256(label ‖ public key of s ‖ both frames in full)
//   secret     = HKDF-Extract(salt = Encryption::shared_key, input)
//   one secret for each direction = HKDF-Expand(secret, label of the direction ‖ transcript)
//
// The pair s authenticates the listening side, the shared key authenticates both. Pairs c and e are erased with the
// connection: a shared key that leaks later opens no recorded data. Pair e makes the keys of a replayed frame new.

inline constexpr size_t kKeyBytes = 32;
using PublicKey = std::array<std::byte, kKeyBytes>;

/// 256 secret bits, erased at the end of their lifetime.
class Key {
 public:
  Key() = default;
  ~Key();
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  std::byte* data() { return bytes_.data(); }
  const std::byte* data() const { return bytes_.data(); }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), kKeyBytes}; }

 private:
  std::array<std::byte, kKeyBytes> bytes_{};
};

/// An X25519 key pair.
/// Source  RFC 7748.
class KeyPair {
 public:
  static KeyPair generate();
  /// Key pair for known answers.
  static KeyPair from_private(std::string_view private_key);

  const PublicKey& public_key() const { return public_key_; }
  /// Errors  INVALID_ARGUMENT: a public key of small order, which makes the result predictable.
  absl::StatusOr<Key> agree(const PublicKey& peer) const;

 private:
  using Handle = std::shared_ptr<evp_pkey_st>;  ///< shared: OpenSSL counts references, and a context passes it on
  explicit KeyPair(Handle pair);

  Handle pair_;
  PublicKey public_key_{};
};

/// Source  RFC 5869, with SHA-256.
Key hkdf_extract(std::string_view salt, std::string_view input);
/// Units   at most 255 × 32 bytes.
std::string hkdf_expand(std::string_view key, std::string_view info, size_t bytes);
Key hkdf_expand_key(std::string_view key, std::string_view info);

std::string sha256(std::initializer_list<std::string_view> parts);

/// The secrets of both directions.
struct DirectionKeys {
  Key from_connecting;
  Key from_listening;
};
DirectionKeys derive_directions(std::string_view shared_key, const Key& with_static, const Key& with_fresh,
                                std::string_view transcript);

/// The address of a listener that encrypts: "host:port#" and its public key in 64 hexadecimal digits.
std::string address_with_key(std::string_view address, const PublicKey& key);
struct SealedAddress {
  std::string address;  ///< "host:port"
  bool has_key = false;
  PublicKey key{};
};
/// Errors  INVALID_ARGUMENT: the part behind '#' is not a key.
absl::StatusOr<SealedAddress> parse_sealed_address(std::string_view text);

}  // namespace gradrail::transport::tcp::seal
