#pragma once

#include <memory>

#include "transport/tcp/seal/aead.h"

namespace gradrail::transport::tcp::seal {

/// AES-256-GCM with the vector instructions of recent processors (VAES), which OpenSSL 3.0 does not use. Null: this
/// build or this processor has none.
std::unique_ptr<Aead> make_vector_aes_256_gcm(const Key& key);

}  // namespace gradrail::transport::tcp::seal
