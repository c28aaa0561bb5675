#include "worker/data/example_decoder.h"

#include <optional>

#include "base/status.h"
#include "fmt/format.h"
#include "worker/data/example.pb.h"

namespace gradrail::worker {
namespace {

constexpr int64_t kClasses = 10;

// The limit is below the range in which a product of three numbers could wrap around.
constexpr int64_t kMaxSide = 1 << 20;

using FeatureMap = google::protobuf::Map<std::string, proto::Feature>;

/// The one number of a feature; nothing if there is no such feature.
absl::StatusOr<std::optional<int64_t>> number_of(const FeatureMap& features, const char* name) {
  const auto found = features.find(name);
  if (found == features.end()) return std::nullopt;
  if (found->second.int64_list().value_size() != 1)
    return absl::DataLossError(fmt::format("its {} is not one int64", name));
  return found->second.int64_list().value(0);
}

/// Height, width and depth; 0 in all without height and width.
absl::StatusOr<ImageSize> size_of(const FeatureMap& features) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::optional<int64_t> height, number_of(features, "height"));
  GRADRAIL_ASSIGN_OR_RETURN(const std::optional<int64_t> width, number_of(features, "width"));
  GRADRAIL_ASSIGN_OR_RETURN(const std::optional<int64_t> depth, number_of(features, "depth"));
  if (!height || !width) return ImageSize();
  const ImageSize size = {.height = *height, .width = *width, .depth = depth.value_or(1)};
  for (const int64_t side : {size.height, size.width, size.depth}) {
    if (side < 1 || side > kMaxSide)
      return absl::DataLossError(
          fmt::format("its size is {} x {} x {} (height, width, depth)", size.height, size.width, size.depth));
  }
  return size;
}

absl::Status check_bytes(const ImageSize& size, size_t bytes) {
  const auto pixels = static_cast<size_t>(size.height * size.width * size.depth);
  if (size == ImageSize() || bytes == pixels) return absl::OkStatus();
  const char* const hint = bytes == pixels * sizeof(float) ? " (float32? convert the pixels to uint8, 0 to 255)" : "";
  return absl::DataLossError(
      fmt::format("image_raw has {} bytes, but {} x {} x {} pixels (height, width, depth) need {}{}", bytes,
                  size.height, size.width, size.depth, pixels, hint));
}

}  // namespace

ExampleDecoder::ExampleDecoder() : example_(std::make_unique<proto::Example>()) {}

ExampleDecoder::~ExampleDecoder() = default;

absl::StatusOr<ExampleDecoder::Decoded> ExampleDecoder::decode(const std::string& record) {
  const auto wrong = [](const std::string& what) { return absl::DataLossError(what); };
  if (!example_->ParseFromString(record)) return wrong("is not a tf.train.Example");
  const FeatureMap& features = example_->features().feature();
  const auto image = features.find("image_raw");
  if (image != features.end() && image->second.has_float_list())
    return wrong("its image_raw is a list of floats: convert the pixels to bytes, 0 to 255");
  if (image == features.end() || image->second.bytes_list().value_size() != 1) return wrong("has no bytes image_raw");
  const auto label = features.find("label");
  if (label == features.end() || label->second.int64_list().value_size() != 1) return wrong("has no int64 label");
  const std::string& pixels = image->second.bytes_list().value(0);
  const int64_t digit = label->second.int64_list().value(0);
  if (pixels.empty()) return wrong("its image_raw is empty");
  GRADRAIL_ASSIGN_OR_RETURN(const ImageSize size, size_of(features));
  GRADRAIL_RETURN_IF_ERROR(check_bytes(size, pixels.size()));
  if (digit < 0 || digit >= kClasses) return wrong(fmt::format("label {}, expected 0 to 9", digit));
  return Decoded{.pixels = {reinterpret_cast<const uint8_t*>(pixels.data()), pixels.size()},
                 .label = static_cast<uint8_t>(digit),
                 .size = size};
}

}  // namespace gradrail::worker
