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
#include "worker/data/example_decoder.h"
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

/// Adds the images of one file.
absl::Status add_file(const std::string& path, uint64_t max_bytes, ExampleDecoder& decoder, Split& split) {
  GRADRAIL_ASSIGN_OR_RETURN(TfRecordReader reader, TfRecordReader::open(path));
  std::string record;
  while (true) {
    GRADRAIL_ASSIGN_OR_RETURN(const bool more, reader.next(record));
    if (!more) return absl::OkStatus();
    const auto wrong = [&](std::string_view what) {
      return absl::DataLossError(fmt::format("{}: record {}: {}", path, reader.index() - 1, what));
    };
    const absl::StatusOr<ExampleDecoder::Decoded> image = decoder.decode(record);
    if (!image.ok()) return wrong(message_of(image.status()));
    if (split.count == 0) {
      split.pixels = image->pixels.size();
      split.size = image->size;
    }
    if (image->pixels.size() != split.pixels)
      return wrong(fmt::format("{} pixels, those before have {}", image->pixels.size(), split.pixels));
    if (image->size != split.size) return wrong("its height, width and depth are not those before");
    if (split.images.size() + split.pixels > max_bytes)
      return absl::InvalidArgumentError(fmt::format(
          "{}: the images of this split have more than {} bytes, and a task keeps them in memory: reduce the split",
          path, max_bytes));
    split.images.insert(split.images.end(), image->pixels.begin(), image->pixels.end());
    split.labels.push_back(image->label);
    ++split.count;
  }
}

absl::StatusOr<Split> read_records(const std::string& folder, const char* name, uint64_t max_bytes) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<std::string> files, files_of(folder, name));
  // The tutorials read records in sequence and shuffle in a buffer: BatchLoader does the same.
  Split split{.in_file_order = true};
  ExampleDecoder decoder;
  for (const std::string& file : files) GRADRAIL_RETURN_IF_ERROR(add_file(file, max_bytes, decoder, split));
  if (split.count == 0) return absl::DataLossError(fmt::format("{}: no records", files.front()));
  return split;
}

/// Both splits must have images of one size. Records need not state their height and width.
absl::Status check_same_images(const std::string& folder, const Split& train, const Split& test) {
  const std::string files = fmt::format("{} and {}", path_of(folder, "train"), path_of(folder, "test"));
  if (train.pixels != test.pixels)
    return absl::DataLossError(fmt::format("{}: {} and {} pixels an image", files, train.pixels, test.pixels));
  const ImageSize &a = train.size, &b = test.size;
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

absl::StatusOr<MnistData> load_records(const std::string& folder, uint64_t max_bytes) {
  MnistData data;
  GRADRAIL_ASSIGN_OR_RETURN(data.train, read_records(folder, "train", max_bytes));
  GRADRAIL_ASSIGN_OR_RETURN(data.test, read_records(folder, "test", max_bytes));
  GRADRAIL_RETURN_IF_ERROR(check_same_images(folder, data.train, data.test));
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
