#include "transport/tcp/seal/aead.h"

#include <openssl/evp.h>

#include <fstream>
#include <string>

#include "base/check.h"
#include "base/little_endian.h"
#include "transport/tcp/seal/aead_vector.h"

namespace gradrail::transport::tcp::seal {
namespace {

using Context = std::unique_ptr<EVP_CIPHER_CTX, void (*)(EVP_CIPHER_CTX*)>;

const unsigned char* raw(const std::byte* data) { return reinterpret_cast<const unsigned char*>(data); }
unsigned char* raw(std::byte* data) { return reinterpret_cast<unsigned char*>(data); }

class OpensslAead final : public Aead {
 public:
  OpensslAead(const EVP_CIPHER* cipher, const Key& key) {
    // The key schedule is computed once; each text sets its nonce only.
    GRADRAIL_CHECK(EVP_EncryptInit_ex(encrypt_.get(), cipher, nullptr, raw(key.data()), nullptr) == 1);
    GRADRAIL_CHECK(EVP_DecryptInit_ex(decrypt_.get(), cipher, nullptr, raw(key.data()), nullptr) == 1);
  }

  void encrypt(const Nonce& nonce, absl::Span<const std::byte> header, absl::Span<const iovec> pieces,
               std::byte* out) override {
    EVP_CIPHER_CTX* const context = encrypt_.get();
    int done = 0;
    bool ok = EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, raw(nonce.data())) == 1 &&
              EVP_EncryptUpdate(context, nullptr, &done, raw(header.data()), static_cast<int>(header.size())) == 1;
    for (const iovec& piece : pieces) {
      ok = ok && EVP_EncryptUpdate(context, raw(out), &done, static_cast<const unsigned char*>(piece.iov_base),
                                   static_cast<int>(piece.iov_len)) == 1;
      out += done;
    }
    ok = ok && EVP_EncryptFinal_ex(context, raw(out), &done) == 1 && done == 0 &&
         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kTagBytes, out) == 1;
    GRADRAIL_CHECK(ok);
  }

  bool decrypt(const Nonce& nonce, absl::Span<const std::byte> header, std::byte* text, size_t bytes) override {
    EVP_CIPHER_CTX* const context = decrypt_.get();
    int done = 0;
    const bool ok = EVP_DecryptInit_ex(context, nullptr, nullptr, nullptr, raw(nonce.data())) == 1 &&
                    EVP_DecryptUpdate(context, nullptr, &done, raw(header.data()), static_cast<int>(header.size())) &&
                    EVP_DecryptUpdate(context, raw(text), &done, raw(text), static_cast<int>(bytes)) == 1 &&
                    EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kTagBytes, text + bytes) == 1;
    GRADRAIL_CHECK(ok);
    return EVP_DecryptFinal_ex(context, raw(text + bytes), &done) == 1;
  }

 private:
  const Context encrypt_{EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free};
  const Context decrypt_{EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free};
};

}  // namespace

std::unique_ptr<Aead> make_aead(Cipher cipher, const Key& key) {
  if (cipher == Cipher::aes_256_gcm) {
    if (std::unique_ptr<Aead> vector = make_vector_aes_256_gcm(key); vector != nullptr) return vector;
  }
  return make_openssl_aead(cipher, key);
}

std::unique_ptr<Aead> make_openssl_aead(Cipher cipher, const Key& key) {
  return std::make_unique<OpensslAead>(cipher == Cipher::aes_256_gcm ? EVP_aes_256_gcm() : EVP_chacha20_poly1305(),
                                       key);
}

Cipher preferred_cipher() {
  // x86 and ARM name the instructions alike, and no compiler offers one function for both.
  static const bool has_aes = [] {
    std::ifstream file("/proc/cpuinfo");
    std::string line;
    while (std::getline(file, line)) {
      if (line.rfind("flags", 0) == 0 || line.rfind("Features", 0) == 0)
        return (line + ' ').find(" aes ") != std::string::npos;
    }
    return false;
  }();
  return has_aes ? Cipher::aes_256_gcm : Cipher::chacha20_poly1305;
}

bool is_known(uint32_t cipher) {
  return cipher == static_cast<uint32_t>(Cipher::aes_256_gcm) ||
         cipher == static_cast<uint32_t>(Cipher::chacha20_poly1305);
}

std::string_view name_of(Cipher cipher) { return cipher == Cipher::aes_256_gcm ? "AES-256-GCM" : "ChaCha20-Poly1305"; }

struct BlockFunction::State {
  Context context{EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free};
};

BlockFunction::BlockFunction(const Key& key) : state_(std::make_unique<State>()) {
  GRADRAIL_CHECK(EVP_EncryptInit_ex(state_->context.get(), EVP_aes_256_ecb(), nullptr, raw(key.data()), nullptr) == 1);
}

BlockFunction::~BlockFunction() = default;

uint32_t BlockFunction::operator()(uint64_t first, uint32_t second) {
  std::byte block[16] = {};
  std::byte out[32];
  store_le(&block[0], first);
  store_le(&block[8], second);
  int done = 0;
  GRADRAIL_CHECK(EVP_EncryptUpdate(state_->context.get(), raw(&out[0]), &done, raw(&block[0]), sizeof(block)) == 1 &&
                 done == sizeof(block));
  return load_le<uint32_t>(&out[0]);
}

}  // namespace gradrail::transport::tcp::seal
