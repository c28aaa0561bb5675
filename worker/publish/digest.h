#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "worker/publish/model.h"

namespace gradrail::publish {

/// A SHA-256 value.
using Digest = std::array<std::byte, 32>;

inline std::string_view text_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}
std::string hex_of(const Digest& digest);

Digest sha256(absl::Span<const std::byte> bytes);

/// The hash of a version: SHA-256 over the text of the model and the SHA-256 of each chunk. It covers names, shapes,
/// format and bits, and not the version number. A delta needs new hashes for the changed chunks only.
Digest digest_of(const Model& model, absl::Span<const Digest> chunks);

/// The hash of each chunk.
std::vector<Digest> chunk_digests(const Model& model, const std::byte* bits);

}  // namespace gradrail::publish
