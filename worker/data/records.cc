#include "worker/data/records.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"
#include "worker/data/example.pb.h"
#include "worker/data/record_queue.h"
#include "worker/data/record_sequence.h"
#include "worker/data/tf_record.h"

namespace gradrail::worker {
namespace {

namespace fs = std::filesystem;

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

/// Takes a split into memory, as far as its limit allows.
class SplitBuilder {
 public:
  explicit SplitBuilder(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  void add(const RecordSequence::Image& image) {
    ++split_.count;
    nonzero_ +=
        image.pixels.size() - static_cast<size_t>(std::count(image.pixels.begin(), image.pixels.end(), uint8_t{0}));
    if (split_.count * image.pixels.size() > max_bytes_) {
      // Freed now: the rest of the pass only verifies and counts.
      split_.images = {};
      split_.labels = {};
      return;
    }
    split_.images.insert(split_.images.end(), image.pixels.begin(), image.pixels.end());
    split_.labels.push_back(image.label);
  }

  Split take(const RecordFiles& files) {
    split_.pixels = files.pixels;
    split_.size = files.size;
    // The tutorials read records in sequence and shuffle in a buffer: BatchLoader does the same.
    split_.in_file_order = true;
    split_.density = static_cast<double>(nonzero_) / static_cast<double>(split_.count * split_.pixels);
    if (split_.count * split_.pixels > max_bytes_) split_.source = std::make_shared<RecordSource>(files);
    return std::move(split_);
  }

 private:
  const uint64_t max_bytes_;
  uint64_t nonzero_ = 0;
  Split split_;
};

absl::StatusOr<Split> read_records(const std::string& folder, const char* name, uint64_t max_bytes) {
  RecordFiles unknown;
  GRADRAIL_ASSIGN_OR_RETURN(unknown.paths, files_of(folder, name));
  RecordSequence sequence(std::move(unknown));
  SplitBuilder builder(max_bytes);
  while (true) {
    GRADRAIL_ASSIGN_OR_RETURN(const std::optional<RecordSequence::Image> image, sequence.next());
    if (!image) break;
    builder.add(*image);
  }
  const RecordFiles& files = sequence.files();
  if (files.count() == 0) return absl::DataLossError(fmt::format("{}: no records", files.paths.front()));
  return builder.take(files);
}

/// A split that the program evaluates in memory.
absl::StatusOr<Split> read_whole(const std::string& folder, const char* name, uint64_t max_bytes) {
  GRADRAIL_ASSIGN_OR_RETURN(Split split, read_records(folder, name, max_bytes));
  if (split.source == nullptr) return split;
  return absl::InvalidArgumentError(
      fmt::format("{}: its images have {} bytes, but this split is kept in memory and may have {}: reduce it",
                  path_of(folder, name), split.count * split.pixels, max_bytes));
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

absl::StatusOr<MnistData> load_records(const std::string& folder, RecordLimits limits) {
  MnistData data;
  GRADRAIL_ASSIGN_OR_RETURN(data.train, read_records(folder, "train", limits.train_bytes));
  GRADRAIL_ASSIGN_OR_RETURN(data.test, read_whole(folder, "test", limits.whole_bytes));
  absl::StatusOr<Split> validation = read_whole(folder, "validation", limits.whole_bytes);
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
