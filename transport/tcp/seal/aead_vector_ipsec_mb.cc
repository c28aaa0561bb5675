#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>

#include "base/check.h"
#include "transport/tcp/seal/aead_vector.h"

namespace gradrail::transport::tcp::seal {
namespace {

/// The functions of the library for this processor. They keep no state between calls.
IMB_MGR* functions() {
  static IMB_MGR* const manager = [] {
    IMB_MGR* const made = alloc_mb_mgr(0);
    if (made != nullptr) init_mb_mgr_auto(made, nullptr);
    return made;
  }();
  return manager;
}

class VectorAead final : public Aead {
 public:
  VectorAead(IMB_MGR* manager, const Key& key) : manager_(manager) { IMB_AES256_GCM_PRE(manager_, key.data(), &key_); }
  ~VectorAead() override {
    OPENSSL_cleanse(&key_, sizeof(key_));
    OPENSSL_cleanse(&context_, sizeof(context_));
  }

  void encrypt(const Nonce& nonce, absl::Span<const std::byte> header, absl::Span<const iovec> pieces,
               std::byte* out) override {
    IMB_AES256_GCM_INIT(manager_, &key_, &context_, bytes(nonce.data()), bytes(header.data()), header.size());
    for (const iovec& piece : pieces) {
      IMB_AES256_GCM_ENC_UPDATE(manager_, &key_, &context_, bytes(out), static_cast<const uint8_t*>(piece.iov_base),
                                piece.iov_len);
      out += piece.iov_len;
    }
    IMB_AES256_GCM_ENC_FINALIZE(manager_, &key_, &context_, bytes(out), kTagBytes);
  }

  bool decrypt(const Nonce& nonce, absl::Span<const std::byte> header, std::byte* text, size_t length) override {
    uint8_t tag[kTagBytes];
    IMB_AES256_GCM_DEC(manager_, &key_, &context_, bytes(text), bytes(text), length, bytes(nonce.data()),
                       bytes(header.data()), header.size(), tag, kTagBytes);
    // The library leaves the comparison to its caller. Its duration does not reveal the first difference.
    return CRYPTO_memcmp(tag, text + length, kTagBytes) == 0;
  }

 private:
  static const uint8_t* bytes(const std::byte* data) { return reinterpret_cast<const uint8_t*>(data); }
  static uint8_t* bytes(std::byte* data) { return reinterpret_cast<uint8_t*>(data); }

  IMB_MGR* const manager_;
  gcm_key_data key_;
  gcm_context_data context_;
};

}  // namespace

std::unique_ptr<Aead> make_vector_aes_256_gcm(const Key& key) {
  IMB_MGR* const manager = functions();
  if (manager == nullptr || (manager->features & IMB_FEATURE_VAES) == 0) return nullptr;
  return std::make_unique<VectorAead>(manager, key);
}

}  // namespace gradrail::transport::tcp::seal
