#include "ps/checkpoint/header.h"

#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "base/little_endian.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::ps {
namespace {

class Encoder {
 public:
  template <typename Integer>
  void integer(Integer value) {
    append_le(bytes_, static_cast<std::make_unsigned_t<Integer>>(value));
  }
  void real(float value) { integer(std::bit_cast<uint32_t>(value)); }
  void text(std::string_view value) {
    integer(static_cast<uint32_t>(value.size()));
    bytes_.append(value);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// A read behind the end returns zero and sets a flag: one check at the end of the header replaces one per field.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}

  template <typename Integer>
  Integer integer() {
    if (!has(sizeof(Integer))) return 0;
    const auto value = load_le<std::make_unsigned_t<Integer>>(bytes_.data() + position_);
    position_ += sizeof(Integer);
    return static_cast<Integer>(value);
  }
  float real() { return std::bit_cast<float>(integer<uint32_t>()); }
  std::string text() {
    const auto length = integer<uint32_t>();
    // The check precedes the copy: the length is read from the file.
    if (!has(length)) return {};
    position_ += length;
    return std::string(bytes_.substr(position_ - length, length));
  }
  /// A count of items of at least `item_bytes` each, so that a wrong count cannot cause a large allocation.
  uint32_t count(size_t item_bytes) {
    const auto items = integer<uint32_t>();
    return has(items * item_bytes) ? items : 0;
  }
  size_t position() const { return position_; }
  bool ended_early() const { return ended_early_; }
  bool at_end() const { return position_ == bytes_.size(); }

 private:
  bool has(size_t bytes) {
    if (bytes > bytes_.size() - position_) ended_early_ = true;
    return !ended_early_;
  }

  std::string_view bytes_;
  size_t position_ = 0;
  bool ended_early_ = false;
};

constexpr size_t kSmallestTensorBytes = 4 + 1 + 4 + 4;  // a scalar with a name of one letter, in the fragment ""

void encode_optimizer(const OptimizerConfig& optimizer, Encoder& out) {
  out.integer(static_cast<uint8_t>(optimizer.kind));
  for (const float value :
       {optimizer.learning_rate, optimizer.momentum, optimizer.beta1, optimizer.beta2, optimizer.epsilon}) {
    out.real(value);
  }
  out.real(optimizer.weight_decay);
}

OptimizerConfig decode_optimizer(Decoder& in) {
  OptimizerConfig optimizer;
  optimizer.kind = static_cast<OptimizerKind>(in.integer<uint8_t>());
  for (float* value :
       {&optimizer.learning_rate, &optimizer.momentum, &optimizer.beta1, &optimizer.beta2, &optimizer.epsilon}) {
    *value = in.real();
  }
  optimizer.weight_decay = in.real();
  return optimizer;
}

void encode_schema(const Schema& schema, Encoder& out) {
  out.integer(static_cast<uint32_t>(schema.size()));
  for (const Tensor& tensor : schema) {
    out.text(tensor.name);
    out.integer(static_cast<uint32_t>(tensor.shape.size()));
    for (const int64_t dimension : tensor.shape) out.integer(dimension);
    out.text(tensor.fragment);
  }
}

Schema decode_schema(Decoder& in) {
  Schema schema(in.count(kSmallestTensorBytes));
  for (Tensor& tensor : schema) {
    tensor.name = in.text();
    tensor.shape.resize(in.count(sizeof(int64_t)));
    for (int64_t& dimension : tensor.shape) dimension = in.integer<int64_t>();
    tensor.fragment = in.text();
    // After an early end each read returns zeros: the loop would only fill empty tensors.
    if (in.ended_early()) break;
  }
  return schema;
}

}  // namespace

std::string encode_header(const CheckpointHeader& header) {
  Encoder out;
  encode_optimizer(header.optimizer, out);
  out.integer(header.range.first);
  out.integer(header.range.count);
  out.integer(header.global_step);
  out.integer(header.saved_us);
  out.integer(header.run);
  out.integer(header.shard_index);
  out.integer(header.shard_count);
  out.integer(header.bucket_bytes);
  encode_schema(header.schema, out);
  out.integer(static_cast<uint32_t>(header.bucket_versions.size()));
  for (const uint64_t version : header.bucket_versions) out.integer(version);
  out.integer(static_cast<uint32_t>(header.fragment_steps.size()));
  for (const uint64_t step : header.fragment_steps) out.integer(step);
  out.integer(static_cast<uint8_t>(header.is_finite));
  return out.take();
}

absl::StatusOr<CheckpointHeader> decode_header(std::string_view bytes) {
  Decoder in(bytes);
  CheckpointHeader header;
  header.optimizer = decode_optimizer(in);
  header.range.first = in.integer<uint64_t>();
  header.range.count = in.integer<uint64_t>();
  header.global_step = in.integer<uint64_t>();
  header.saved_us = in.integer<uint64_t>();
  header.run = in.integer<uint64_t>();
  header.shard_index = in.integer<uint32_t>();
  header.shard_count = in.integer<uint32_t>();
  header.bucket_bytes = in.integer<uint32_t>();
  header.schema = decode_schema(in);
  header.bucket_versions.resize(in.count(sizeof(uint64_t)));
  for (uint64_t& version : header.bucket_versions) version = in.integer<uint64_t>();
  header.fragment_steps.resize(in.count(sizeof(uint64_t)));
  for (uint64_t& step : header.fragment_steps) step = in.integer<uint64_t>();
  const auto is_finite = in.integer<uint8_t>();
  header.is_finite = is_finite != 0;
  if (in.ended_early()) {
    return absl::InvalidArgumentError(
        fmt::format("the field at byte {} needs more than the header's {} bytes", in.position(), bytes.size()));
  }
  // Bytes that no field uses mean that another program wrote the header.
  if (!in.at_end()) {
    return absl::InvalidArgumentError(
        fmt::format("its fields end at byte {} of the header's {}", in.position(), bytes.size()));
  }
  if (is_finite > 1) return absl::InvalidArgumentError(fmt::format("{} where 0 or 1 must be", is_finite));
  GRADRAIL_RETURN_IF_ERROR(check_header(header));
  return header;
}

absl::Status check_header(const CheckpointHeader& header) {
  // The cast from a byte can give a number that is no kind.
  if (header.optimizer.kind > kLastOptimizer) {
    return absl::InvalidArgumentError(fmt::format("optimizer number {}", static_cast<int>(header.optimizer.kind)));
  }
  if (header.shard_index >= header.shard_count) {
    return absl::InvalidArgumentError(fmt::format("shard {} of {}", header.shard_index, header.shard_count));
  }
  if (header.global_step > kMaxGlobalStep) {
    return absl::InvalidArgumentError(
        fmt::format("global step {}: the largest one is {}", header.global_step, kMaxGlobalStep));
  }
  GRADRAIL_RETURN_IF_ERROR(validate(header.schema));
  const Layout layout = layout_of(header.schema);
  const uint64_t elements = layout.elements;
  if (!header.fragment_steps.empty() && header.fragment_steps.size() != layout.fragments.size()) {
    return absl::InvalidArgumentError(
        fmt::format("steps of {} fragments in a schema of {}", header.fragment_steps.size(), layout.fragments.size()));
  }
  // Each of them becomes the version of a bucket.
  for (const uint64_t step : header.fragment_steps) {
    if (step > kMaxGlobalStep)
      return absl::InvalidArgumentError(
          fmt::format("step {} of a fragment: the largest one is {}", step, kMaxGlobalStep));
  }
  // The check is a subtraction, because first + count of a damaged file may overflow.
  if (header.range.first > elements || header.range.count > elements - header.range.first) {
    return absl::InvalidArgumentError(fmt::format("range of {} elements from {} in a schema of {}", header.range.count,
                                                  header.range.first, elements));
  }
  return absl::OkStatus();
}

}  // namespace gradrail::ps
