#include "worker/data/records.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"
#include "worker/data/example.pb.h"
#include "worker/data/tf_record.h"

namespace gradrail::worker {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kClasses = 10;

// Below the range in which a product of three numbers could wrap around.
constexpr int64_t kMaxSide = 1 << 20;

using FeatureMap = google::protobuf::Map<std::string, proto::Feature>;

std::string path_of(const std::string& folder, const char* split) {
  return fmt::format("{}/{}.tfrecords", folder, split);
}

/// "train.tfrecords-00001-of-00004" is {1, 4}.
struct Shard {
  size_t index = 0;
  size_t count = 0;
};

std::string path_of(const std::string& folder, const char* split, const Shard& shard) {
  return fmt::format("{}-{:05}-of-{:05}", path_of(folder, split), shard.index, shard.count);
}

std::optional<Shard> parse_shard(std::string_view name, const char* split) {
  const std::string prefix = fmt::format("{}.tfrecords-", split);
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  constexpr std::string_view kOf = "-of-";
  const size_t of = name.find(kOf);
  if (of == std::string_view::npos) return std::nullopt;
  const std::optional<size_t> index = parse_number<size_t>(name.substr(0, of));
  const std::optional<size_t> count = parse_number<size_t>(name.substr(of + kOf.size()));
  if (!index || !count || *index >= *count) return std::nullopt;
  return Shard{*index, *count};
}

std::vector<Shard> list_shards(const std::string& folder, const char* split) {
  std::vector<Shard> shards;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
    if (const std::optional<Shard> shard = parse_shard(entry->path().filename().string(), split))
      shards.push_back(*shard);
  }
  return shards;
}

/// The files of a split, in the order of their records: one file, or all shards.
/// Errors  NOT_FOUND: there is none. DATA_LOSS: a shard is missing, or there are two sets.
absl::StatusOr<std::vector<std::string>> files_of(const std::string& folder, const char* split) {
  const std::string whole = path_of(folder, split);
  const std::vector<Shard> shards = list_shards(folder, split);
  std::error_code ignored;
  const bool has_whole = fs::exists(whole, ignored);
  if (!has_whole && shards.empty()) {
    return absl::NotFoundError(fmt::format(
        "{}: no such file, and no shards {}.tfrecords-00000-of-NNNNN: a data set needs train and test", whole, split));
  }
  if (shards.empty()) return std::vector<std::string>{whole};
  const size_t count = shards[0].count;
  const auto other =
      std::find_if(shards.begin(), shards.end(), [&](const Shard& shard) { return shard.count != count; });
  if (has_whole || other != shards.end()) {
    return absl::DataLossError(fmt::format("{} and {}: two sets of the same records: remove one",
                                           path_of(folder, split, shards[0]),
                                           has_whole ? whole : path_of(folder, split, *other)));
  }
  std::vector<std::string> files;
  files.reserve(shards.size());
  // No more than there are: the count in a name must not decide how long this takes.
  for (size_t i = 0; i < shards.size(); ++i) files.push_back(path_of(folder, split, {i, count}));
  const auto missing =
      std::find_if(files.begin(), files.end(), [&](const std::string& file) { return !fs::exists(file, ignored); });
  if (missing != files.end()) return absl::DataLossError(fmt::format("{}: this shard is missing", *missing));
  if (shards.size() < count)
    return absl::DataLossError(
        fmt::format("{}: this shard is missing", path_of(folder, split, {shards.size(), count})));
  return files;
}

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

/// Takes examples one by one and says what is wrong with one.
class SplitBuilder {
 public:
  /// `path` and `index` name the record in errors.
  absl::Status add(const std::string& path, uint64_t index, const std::string& record) {
    const absl::Status added = add(record);
    if (added.ok()) return added;
    return absl::DataLossError(fmt::format("{}: record {}: {}", path, index, message_of(added)));
  }

  Split take() { return std::move(split_); }

 private:
  absl::Status add(const std::string& record) {
    const auto wrong = [](const std::string& what) { return absl::DataLossError(what); };
    if (!example_.ParseFromString(record)) return wrong("is not a tf.train.Example");
    const FeatureMap& features = example_.features().feature();
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
    if (split_.count > 0 && pixels.size() != split_.pixels) {
      return wrong(fmt::format("{} pixels, those before have {}", pixels.size(), split_.pixels));
    }
    if (split_.count > 0 && size != split_.size) return wrong("its height, width and depth are not those before");
    if (digit < 0 || digit >= kClasses) return wrong(fmt::format("label {}, expected 0 to 9", digit));
    split_.pixels = pixels.size();
    split_.size = size;
    split_.images.insert(split_.images.end(), pixels.begin(), pixels.end());
    split_.labels.push_back(static_cast<uint8_t>(digit));
    ++split_.count;
    return absl::OkStatus();
  }

  // Used for each record: protobuf keeps its memory from one parse to the next.
  proto::Example example_;
  Split split_;
};

absl::Status add_file(const std::string& path, SplitBuilder& builder) {
  GRADRAIL_ASSIGN_OR_RETURN(TfRecordReader reader, TfRecordReader::open(path));
  std::string record;
  while (true) {
    const uint64_t index = reader.index();
    GRADRAIL_ASSIGN_OR_RETURN(const bool more, reader.next(record));
    if (!more) return absl::OkStatus();
    GRADRAIL_RETURN_IF_ERROR(builder.add(path, index, record));
  }
}

absl::StatusOr<Split> read_records(const std::string& folder, const char* name) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<std::string> files, files_of(folder, name));
  SplitBuilder builder;
  for (const std::string& file : files) GRADRAIL_RETURN_IF_ERROR(add_file(file, builder));
  Split split = builder.take();
  if (split.count == 0) return absl::DataLossError(fmt::format("{}: no records", files.front()));
  // The tutorials read records in sequence and shuffle in a buffer: BatchLoader does the same.
  split.in_file_order = true;
  return split;
}

/// A split must have images of the size of `train`. Records need not state their height and width.
absl::Status check_same_images(const std::string& folder, const Split& train, const char* name, const Split& split) {
  const std::string files = fmt::format("{} and {}", path_of(folder, "train"), path_of(folder, name));
  if (train.pixels != split.pixels)
    return absl::DataLossError(fmt::format("{}: {} and {} pixels an image", files, train.pixels, split.pixels));
  const ImageSize &a = train.size, &b = split.size;
  if (a == b || a == ImageSize() || b == ImageSize()) return absl::OkStatus();
  return absl::DataLossError(
      fmt::format("{}: images of {} x {} x {} and {} x {} x {} (height, width, depth): write both with one size", files,
                  a.height, a.width, a.depth, b.height, b.width, b.depth));
}

void set_number(proto::Example& example, const char* name, int64_t value) {
  proto::Int64List& list = *(*example.mutable_features()->mutable_feature())[name].mutable_int64_list();
  list.clear_value();
  list.add_value(value);
}

absl::Status write_split(const Split& split, const std::string& path) {
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(split.pixels))));
  if (static_cast<size_t>(side * side) != split.pixels) {
    return absl::InvalidArgumentError(fmt::format("{}: images of {} pixels are not square", path, split.pixels));
  }
  GRADRAIL_ASSIGN_OR_RETURN(TfRecordWriter writer, TfRecordWriter::create(path));
  proto::Example example;
  set_number(example, "height", side);
  set_number(example, "width", side);
  set_number(example, "depth", 1);
  // protobuf keeps the address of a map's value when other keys are added.
  std::string* const pixels =
      (*example.mutable_features()->mutable_feature())["image_raw"].mutable_bytes_list()->add_value();
  for (size_t i = 0; i < split.count; ++i) {
    set_number(example, "label", split.labels[i]);
    pixels->assign(reinterpret_cast<const char*>(split.images.data() + i * split.pixels), split.pixels);
    GRADRAIL_RETURN_IF_ERROR(writer.write(example.SerializeAsString()));
  }
  return writer.commit();
}

}  // namespace

bool holds_records(const std::string& folder) {
  std::error_code ignored;
  return fs::exists(path_of(folder, "train"), ignored) || !list_shards(folder, "train").empty();
}

absl::StatusOr<MnistData> load_records(const std::string& folder) {
  MnistData data;
  GRADRAIL_ASSIGN_OR_RETURN(data.train, read_records(folder, "train"));
  GRADRAIL_ASSIGN_OR_RETURN(data.test, read_records(folder, "test"));
  absl::StatusOr<Split> validation = read_records(folder, "validation");
  // A validation file is optional, but a damaged one is an error.
  if (!validation.ok() && !absl::IsNotFound(validation.status())) return validation.status();
  if (validation.ok()) data.validation = *std::move(validation);
  GRADRAIL_RETURN_IF_ERROR(check_same_images(folder, data.train, "test", data.test));
  if (data.validation.count > 0)
    GRADRAIL_RETURN_IF_ERROR(check_same_images(folder, data.train, "validation", data.validation));
  return data;
}

absl::Status write_records(const MnistData& data, const std::string& folder) {
  std::error_code made;
  fs::create_directories(folder, made);
  if (made) return absl::NotFoundError(fmt::format("{}: cannot be made: {}", folder, made.message()));
  GRADRAIL_RETURN_IF_ERROR(write_split(data.train, path_of(folder, "train")));
  GRADRAIL_RETURN_IF_ERROR(write_split(data.validation, path_of(folder, "validation")));
  return write_split(data.test, path_of(folder, "test"));
}

}  // namespace gradrail::worker
