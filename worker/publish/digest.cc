#include "worker/publish/digest.h"

#include <openssl/evp.h>

#include "base/check.h"
#include "base/little_endian.h"

namespace gradrail::publish {

std::string hex_of(const Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte each : digest) {
    const auto value = std::to_integer<unsigned>(each);
    text += kDigits[value / 16];
    text += kDigits[value % 16];
  }
  return text;
}

Digest sha256(absl::Span<const std::byte> bytes) {
  Digest digest;
  GRADRAIL_CHECK(EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr,
                            EVP_sha256(), nullptr) == 1);
  return digest;
}

Digest digest_of(const Model& model, absl::Span<const Digest> chunks) {
  std::string all = "gradrail weights 1";
  append_le(all, static_cast<uint64_t>(model.text().size()));  // another cut between the parts gives another hash
  all += model.text();
  for (const Digest& chunk : chunks) all += text_of(chunk);
  return sha256({reinterpret_cast<const std::byte*>(all.data()), all.size()});
}

std::vector<Digest> chunk_digests(const Model& model, const std::byte* bits) {
  std::vector<Digest> digests(model.chunk_count());
  for (size_t i = 0; i < digests.size(); ++i) {
    const Chunk chunk = model.chunk(i);
    digests[i] = sha256({bits + chunk.offset, chunk.bytes});
  }
  return digests;
}

}  // namespace gradrail::publish
