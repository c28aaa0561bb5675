#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/publish/model.h"

namespace gradrail::publish {

/// Codes the difference of two versions of one chunk, without loss.
///
///   chunk of a delta: [kind and bytes u32: kind in the upper 2 bits][payload]
///     0 same      no payload
///     1 gaps      for each changed element [gap varint: unchanged elements before it][difference varint]
///     2 bitmap    [a bit for each element, lowest first][difference varint of each changed element]
///     3 raw       the new bits
///
/// A difference is the new bits less the old bits, as integers modulo 2^16 or 2^32. In zigzag order, neighbors on the
/// number line take one byte. Varints are LEB128. The encoder chooses gaps or bitmap by the number of changes. It takes
/// raw if the result is not shorter.
///
/// Source  Protocol Buffers, Encoding (varint, zigzag).

/// The header alone: the bound of what a chunk of a delta takes beyond its bits.
inline constexpr size_t kChunkHeaderBytes = 4;

/// Appends the chunk of a delta. Returns whether a bit has changed.
bool append_delta(Format format, absl::Span<const std::byte> before, absl::Span<const std::byte> now,
                  std::vector<std::byte>& delta);

/// Applies the first chunk of `delta` to `bits`, and removes it from `delta`. `changed`: bits were written.
/// Errors  DATA_LOSS: truncated or out of range. Some elements may have been written.
absl::Status apply_delta(Format format, absl::Span<const std::byte>& delta, absl::Span<std::byte> bits, bool& changed);

}  // namespace gradrail::publish
