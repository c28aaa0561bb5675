#include "worker/publish/model.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/little_endian.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::publish {
namespace {

static_assert(std::endian::native == std::endian::little, "bits travel as they lie in memory");

constexpr size_t kMaxDimensions = 64;  // NumPy has the same limit

/// Reads the fields of a text. After a truncated field `ok` stays false and each result is empty.
struct Fields {
  std::string_view rest;
  bool ok = true;

  std::string_view take(size_t bytes) {
    ok = ok && bytes <= rest.size();
    if (!ok) return {};
    const std::string_view taken = rest.substr(0, bytes);
    rest.remove_prefix(bytes);
    return taken;
  }
  template <typename T>
  T number() {
    const std::string_view taken = take(sizeof(T));
    return ok ? load_le<T>(taken.data()) : T{0};
  }
};

/// A gradient of NaN reaches all parameters: the rounding must not turn NaN into infinity.
inline uint16_t to_bf16(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

void to_bf16(const float* source, size_t count, std::byte* target) {
  auto* const out = reinterpret_cast<uint16_t*>(target);
  const auto* const in = reinterpret_cast<const uint32_t*>(source);
  for (size_t i = 0; i < count; ++i) out[i] = to_bf16(in[i]);
}

std::string text_of(Format format, const Schema& schema) {
  std::string text;
  append_le(text, static_cast<uint32_t>(format));
  append_le(text, static_cast<uint32_t>(schema.size()));
  for (const Tensor& tensor : schema) {
    append_le(text, static_cast<uint32_t>(tensor.name.size()));
    text += tensor.name;
    append_le(text, static_cast<uint32_t>(tensor.shape.size()));
    for (const int64_t dimension : tensor.shape) append_le(text, static_cast<uint64_t>(dimension));
  }
  return text;
}

}  // namespace

absl::StatusOr<Format> parse_format(std::string_view name) {
  if (name == "fp32") return Format::fp32;
  if (name == "bf16") return Format::bf16;
  return absl::InvalidArgumentError(fmt::format("format '{}': must be fp32 or bf16", escaped(name)));
}

std::string_view name_of(Format format) { return format == Format::bf16 ? "bf16" : "fp32"; }

Model::Model(Format format, Schema schema)
    : format_(format), schema_(std::move(schema)), offsets_{0}, text_(text_of(format_, schema_)) {
  for (const Tensor& tensor : schema_) offsets_.push_back(offsets_.back() + tensor.elements() * element_bytes(format_));
}

absl::StatusOr<Model> Model::create(Format format, Schema schema) {
  GRADRAIL_RETURN_IF_ERROR(validate(schema));
  return Model(format, std::move(schema));
}

absl::StatusOr<Model> Model::decode(std::string_view text) {
  Fields fields{text};
  const auto format = fields.number<uint32_t>();
  const auto count = fields.number<uint32_t>();
  Schema schema;
  for (uint32_t i = 0; i < count && fields.ok; ++i) {
    Tensor tensor;
    tensor.name = std::string(fields.take(fields.number<uint32_t>()));
    const auto dimensions = fields.number<uint32_t>();
    if (dimensions > kMaxDimensions)
      return absl::InvalidArgumentError("the list of tensors has a tensor with too many dimensions");
    for (uint32_t d = 0; d < dimensions; ++d) tensor.shape.push_back(static_cast<int64_t>(fields.number<uint64_t>()));
    schema.push_back(std::move(tensor));
  }
  if (!fields.ok || !fields.rest.empty())
    return absl::InvalidArgumentError("the list of tensors is truncated or has excess bytes");
  if (format > static_cast<uint32_t>(Format::bf16))
    return absl::InvalidArgumentError(fmt::format("the list of tensors has the unknown format {}", format));
  return create(static_cast<Format>(format), std::move(schema));
}

Chunk Model::chunk(size_t index) const {
  const size_t offset = index * kChunkBytes;
  return {.offset = offset, .bytes = std::min(kChunkBytes, bytes() - offset)};
}

void Model::to_bits(absl::Span<const float* const> arrays, std::byte* bits) const {
  for (size_t i = 0; i < arrays.size(); ++i) {
    const size_t bytes = offset(i + 1) - offset(i);
    if (format_ == Format::bf16) {
      to_bf16(arrays[i], bytes / element_bytes(format_), bits + offset(i));
    } else {
      std::memcpy(bits + offset(i), arrays[i], bytes);
    }
  }
}

}  // namespace gradrail::publish
