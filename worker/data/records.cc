#include "worker/data/records.h"

#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/status.h"
#include "fmt/format.h"
#include "worker/data/example.pb.h"
#include "worker/data/tf_record.h"

namespace gradrail::worker {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kClasses = 10;

std::string path_of(const std::string& folder, const char* split) {
  return fmt::format("{}/{}.tfrecords", folder, split);
}

/// Takes examples one by one and says what is wrong with one.
class SplitBuilder {
 public:
  explicit SplitBuilder(std::string path) : path_(std::move(path)) {}

  absl::Status add(uint64_t index, const std::string& record) {
    const auto wrong = [&](std::string_view what) {
      return absl::DataLossError(fmt::format("{}: record {}: {}", path_, index, what));
    };
    if (!example_.ParseFromString(record)) return wrong("is not a tf.train.Example");
    const auto& features = example_.features().feature();
    const auto image = features.find("image_raw");
    if (image == features.end() || image->second.bytes_list().value_size() != 1) return wrong("has no bytes image_raw");
    const auto label = features.find("label");
    if (label == features.end() || label->second.int64_list().value_size() != 1) return wrong("has no int64 label");
    const std::string& pixels = image->second.bytes_list().value(0);
    const int64_t digit = label->second.int64_list().value(0);
    if (pixels.empty()) return wrong("its image_raw is empty");
    if (split_.count > 0 && pixels.size() != split_.pixels) {
      return wrong(fmt::format("{} pixels, those before have {}", pixels.size(), split_.pixels));
    }
    if (digit < 0 || digit >= kClasses) return wrong(fmt::format("label {}, expected 0 to 9", digit));
    split_.pixels = pixels.size();
    split_.images.insert(split_.images.end(), pixels.begin(), pixels.end());
    split_.labels.push_back(static_cast<uint8_t>(digit));
    ++split_.count;
    return absl::OkStatus();
  }

  Split take() { return std::move(split_); }

 private:
  std::string path_;
  // Used for each record: protobuf keeps its memory from one parse to the next.
  proto::Example example_;
  Split split_;
};

absl::StatusOr<Split> read_split(const std::string& path) {
  GRADRAIL_ASSIGN_OR_RETURN(TfRecordReader reader, TfRecordReader::open(path));
  SplitBuilder builder(path);
  std::string record;
  while (true) {
    const uint64_t index = reader.index();
    GRADRAIL_ASSIGN_OR_RETURN(const bool more, reader.next(record));
    if (!more) break;
    GRADRAIL_RETURN_IF_ERROR(builder.add(index, record));
  }
  Split split = builder.take();
  if (split.count == 0) return absl::DataLossError(fmt::format("{}: no records", path));
  // The tutorials read records in sequence and shuffle in a buffer: BatchLoader does the same.
  split.in_file_order = true;
  return split;
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
  return fs::exists(path_of(folder, "train"), ignored);
}

absl::StatusOr<MnistData> load_records(const std::string& folder) {
  MnistData data;
  GRADRAIL_ASSIGN_OR_RETURN(Split train, read_split(path_of(folder, "train")));
  GRADRAIL_ASSIGN_OR_RETURN(Split test, read_split(path_of(folder, "test")));
  absl::StatusOr<Split> validation = read_split(path_of(folder, "validation"));
  // A validation file is optional, but a damaged one is an error.
  if (!validation.ok() && !absl::IsNotFound(validation.status())) return validation.status();
  if (validation.ok()) data.validation = *std::move(validation);
  data.train = std::move(train);
  data.test = std::move(test);
  if (data.train.pixels != data.test.pixels) {
    return absl::DataLossError(fmt::format("{} and {}: {} and {} pixels an image", path_of(folder, "train"),
                                           path_of(folder, "test"), data.train.pixels, data.test.pixels));
  }
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
