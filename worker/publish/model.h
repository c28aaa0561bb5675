#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ps/protocol/schema.h"

namespace gradrail::publish {

/// Elements of a published parameter. The numbers are those of the wire.
enum class Format : uint32_t { fp32 = 0, bf16 = 1 };

/// Errors  INVALID_ARGUMENT: not "fp32" or "bf16".
absl::StatusOr<Format> parse_format(std::string_view name);
std::string_view name_of(Format format);
inline size_t element_bytes(Format format) { return format == Format::bf16 ? 2 : 4; }

/// A piece of the bits of a model.
struct Chunk {
  size_t offset = 0;
  size_t bytes = 0;
};

/// The unit of hashing and of the delta codec: it fits into the second-level cache of a core.
inline constexpr size_t kChunkBytes = size_t{1} << 20;

/// Names, shapes and format of published parameters, and their places in one range of bits. The tensors follow each
/// other without gaps.
class Model {
 public:
  /// Errors  INVALID_ARGUMENT: those of validate().
  static absl::StatusOr<Model> create(Format format, Schema schema);
  /// Reads text() of another process. Errors  INVALID_ARGUMENT: truncated, or a field is out of range.
  static absl::StatusOr<Model> decode(std::string_view text);

  Format format() const { return format_; }
  const Schema& schema() const { return schema_; }
  /// The wire form: [format u32][tensors u32] and for each [name bytes u32][name][dimensions u32][dimension u64]…
  const std::string& text() const { return text_; }
  size_t bytes() const { return offsets_.back(); }
  /// The place of a tensor. `tensor` may be the number of tensors: the end.
  size_t offset(size_t tensor) const { return offsets_[tensor]; }

  size_t chunk_count() const { return (bytes() + kChunkBytes - 1) / kChunkBytes; }
  Chunk chunk(size_t index) const;

  /// Writes the bits of all tensors. bf16 rounds to nearest even; each NaN stays a NaN.
  /// Shapes  arrays: one for each tensor, in their order.
  void to_bits(absl::Span<const float* const> arrays, std::byte* bits) const;

 private:
  Model(Format format, Schema schema);

  Format format_;
  Schema schema_;
  std::vector<size_t> offsets_;
  std::string text_;
};

}  // namespace gradrail::publish
