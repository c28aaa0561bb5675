#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/types/span.h"
#include "transport/tcp/seal/keys.h"

namespace gradrail::transport::tcp::seal {

/// The numbers are part of the seal frame.
enum class Cipher : uint32_t { aes_256_gcm = 1, chacha20_poly1305 = 2 };

constexpr const char* cipher_name(Cipher cipher) {
  return cipher == Cipher::aes_256_gcm ? "AES-256-GCM" : "ChaCha20-Poly1305";
}

inline constexpr size_t kTagBytes = 16;
inline constexpr size_t kNonceBytes = 12;
using Nonce = std::array<std::byte, kNonceBytes>;

/// Authenticated encryption with one key. A nonce is used once.
/// Source  NIST SP 800-38D (GCM), RFC 8439 (ChaCha20-Poly1305).
class Aead {
 public:
  virtual ~Aead() = default;
  Aead() = default;
  Aead(const Aead&) = delete;
  Aead& operator=(const Aead&) = delete;

  /// Writes the encrypted pieces, then the tag, to `out`.
  virtual void encrypt(const Nonce& nonce, absl::Span<const std::byte> header, absl::Span<const iovec> pieces,
                       std::byte* out) = 0;
  /// Decrypts `bytes` at `text`, which the tag follows, in place. False: the tag does not match.
  virtual bool decrypt(const Nonce& nonce, absl::Span<const std::byte> header, std::byte* text, size_t bytes) = 0;
};

/// The fastest implementation for this processor.
std::unique_ptr<Aead> make_aead(Cipher cipher, const Key& key);
std::unique_ptr<Aead> make_openssl_aead(Cipher cipher, const Key& key);

/// AES-256-GCM where this processor has instructions for AES.
Cipher preferred_cipher();
bool is_known(uint32_t cipher);
std::string_view name_of(Cipher cipher);

/// A pseudorandom function of one block: AES-256 with its own key.
class BlockFunction {
 public:
  explicit BlockFunction(const Key& key);
  ~BlockFunction();
  BlockFunction(const BlockFunction&) = delete;
  BlockFunction& operator=(const BlockFunction&) = delete;
  /// The first bytes of the block that begins with these two numbers.
  uint32_t operator()(uint64_t first, uint32_t second);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace gradrail::transport::tcp::seal
