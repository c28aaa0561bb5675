// TFRecord files: what TensorFlow wrote is read, what we wrote is read again, what is damaged is named.
#include "worker/data/records.h"

#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "base/random.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "tests/worker/data/idx_files.h"
#include "worker/data/tf_record.h"
#include "worker/models/workload.h"

namespace gradrail::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Split split_of(size_t count, size_t pixels, uint8_t first) {
  Split split{.count = count, .pixels = pixels};
  for (size_t i = 0; i < count * pixels; ++i) split.images.push_back(static_cast<uint8_t>(first + i));
  for (size_t i = 0; i < count; ++i) split.labels.push_back(static_cast<uint8_t>(i % 10));
  return split;
}

MnistData small_set() {
  return {.train = split_of(30, 16, 1), .validation = split_of(5, 16, 2), .test = split_of(7, 16, 3)};
}

Bytes read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The twelve bytes that every event file of TensorFlow begins with: the header of a record of 24 bytes.
const Bytes kHeaderOf24 = {0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22};

TEST(TfRecord, WhatWasWrittenIsReadAgain) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.tfrecords";
  absl::StatusOr<TfRecordWriter> writer = TfRecordWriter::create(path);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::string large(3 << 20, 'x');
  for (const std::string_view record : {std::string_view("abc"), std::string_view(), std::string_view(large)}) {
    ASSERT_TRUE(writer->write(record).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path)) << "half a file can be seen";
  ASSERT_TRUE(writer->commit().ok());
  absl::StatusOr<TfRecordReader> reader = TfRecordReader::open(path);
  ASSERT_TRUE(reader.ok());
  std::vector<std::string> records;
  std::string record;
  for (absl::StatusOr<bool> more = reader->next(record); more.ok() && *more; more = reader->next(record))
    records.push_back(record);
  EXPECT_THAT(records, ElementsAre("abc", "", large));
}

TEST(TfRecord, EveryCutAndEveryTurnedBitIsNoticed) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.tfrecords";
  absl::StatusOr<TfRecordWriter> writer = TfRecordWriter::create(path);
  ASSERT_TRUE(writer.ok() && writer->write("one").ok() && writer->write("two").ok() && writer->commit().ok());
  const Bytes whole = read_all(path);
  const auto read = [&](const Bytes& bytes) -> absl::Status {
    GRADRAIL_ASSIGN_OR_RETURN(TfRecordReader reader, TfRecordReader::open(folder.write("y.tfrecords", bytes)));
    std::string record;
    while (true) {
      GRADRAIL_ASSIGN_OR_RETURN(const bool more, reader.next(record));
      if (!more) return absl::OkStatus();
    }
  };
  ASSERT_TRUE(read(whole).ok());
  for (size_t length = 1; length < whole.size(); ++length) {
    const absl::Status status = read(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)));
    if (length == whole.size() / 2) continue;  // between the two records: a file of one
    EXPECT_TRUE(absl::IsDataLoss(status)) << length << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("y.tfrecords: record "));
  }
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    Bytes turned = whole;
    turned[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    EXPECT_TRUE(absl::IsDataLoss(read(turned))) << bit;
  }
}

TEST(Records, SetIsReadAsItWasWritten) {
  const TemporaryFolder folder;
  const std::string there = folder.path() + "/made/for/it";
  const MnistData data = small_set();
  ASSERT_TRUE(write_records(data, there).ok());
  ASSERT_TRUE(holds_records(there));
  const absl::StatusOr<MnistData> read = load_records(there);
  ASSERT_TRUE(read.ok()) << read.status();
  for (const auto& [ours, theirs] : {std::pair{&data.train, &read->train}, std::pair{&data.test, &read->test}}) {
    EXPECT_EQ(ours->count, theirs->count);
    EXPECT_EQ(ours->pixels, theirs->pixels);
    EXPECT_EQ(ours->images, theirs->images);
    EXPECT_EQ(ours->labels, theirs->labels);
    EXPECT_TRUE(theirs->in_file_order);
  }
}

/// A field of protobuf's wire format with a length.
std::string field(char tag, const std::string& content) {
  std::string length(1, static_cast<char>(content.size() & 0x7f));
  if (content.size() > 0x7f) {
    length[0] = static_cast<char>(length[0] | 0x80);
    length += static_cast<char>(content.size() >> 7);
  }
  return tag + length + content;
}

/// An entry of the map of features. `kind`: 1 for bytes, 2 for floats, 3 for int64.
std::string feature(const std::string& name, int kind, const std::string& value) {
  const std::string list = field(static_cast<char>(kind * 8 + 2), field(0x0a, value));
  return field(0x0a, field(0x0a, name) + field(0x12, list));
}

std::string number(const std::string& name, char value) { return feature(name, 3, std::string(1, value)); }

/// An Example with an image and a label, as Python's protobuf serializes it; `more`: further features.
std::string example(const std::string& pixels, char label, const std::string& image_name = "image_raw",
                    const std::string& label_name = "label", const std::string& more = "") {
  return field(0x0a, feature(image_name, 1, pixels) + number(label_name, label) + more);
}

std::string sized(const std::string& pixels, char height, char width, char depth) {
  return example(pixels, 3, "image_raw", "label",
                 number("height", height) + number("width", width) + number("depth", depth));
}

TEST(Records, WhatIsWrongWithARecordIsNamed) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_records(small_set(), folder.path()).ok());
  const auto load = [&](const std::vector<std::string>& records) {
    absl::StatusOr<TfRecordWriter> writer = TfRecordWriter::create(folder.path() + "/train.tfrecords");
    for (const std::string& record : records) EXPECT_TRUE(writer->write(record).ok());
    EXPECT_TRUE(writer->commit().ok());
    return load_records(folder.path()).status();
  };
  const std::string good = example(std::string(16, 'p'), 3);
  EXPECT_TRUE(load({good, good}).ok());
  for (const auto& [bad, words] :
       {std::pair{std::string("\xff\xff"), "is not a tf.train.Example"},
        std::pair{example("", 3), "image_raw is empty"},
        std::pair{example(std::string(15, 'p'), 3), "15 pixels, those before have 16"},
        std::pair{example(std::string(16, 'p'), 10), "label 10, expected 0 to 9"},
        std::pair{example(std::string(16, 'p'), 3, "image"), "has no bytes image_raw"},
        std::pair{example(std::string(16, 'p'), 3, "image_raw", "digit"), "has no int64 label"},
        std::pair{field(0x0a, feature("image_raw", 2, std::string(64, 'p')) + number("label", 3)),
                  "image_raw is a list of floats: convert the pixels to bytes"},
        std::pair{sized(std::string(64, 'p'), 4, 4, 1),
                  "image_raw has 64 bytes, but 4 x 4 x 1 pixels (height, width, depth) need 16 (float32? convert"},
        std::pair{sized(std::string(16, 'p'), 4, 5, 1), "4 x 5 x 1 pixels (height, width, depth) need 20"},
        std::pair{sized(std::string(16, 'p'), 0, 4, 1), "its size is 0 x 4 x 1"},
        std::pair{sized(std::string(16, 'p'), 4, 4, 1), "its height, width and depth are not those before"},
        std::pair{example(std::string(16, 'p'), 3, "image_raw", "label", feature("height", 1, "4")),
                  "its height is not one int64"}}) {
    const absl::Status status = load({good, bad});
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("train.tfrecords: record 1: ")));
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }
  EXPECT_THAT(std::string(load({}).message()), HasSubstr("no records"));
}

TEST(Records, ImagesThatAreNotSquareAreNotForTheConvolutions) {
  const TemporaryFolder folder;
  const auto make = [&](char height, char width, char depth) {
    for (const char* split : {"/train.tfrecords", "/test.tfrecords"}) {
      absl::StatusOr<TfRecordWriter> writer = TfRecordWriter::create(folder.path() + split);
      EXPECT_TRUE(writer->write(sized(std::string(64, 'p'), height, width, depth)).ok() && writer->commit().ok());
    }
    return make_workload({.model = "cnn", .batch_size = 1, .data_dir = folder.path()}).status();
  };
  EXPECT_TRUE(make(8, 8, 1).ok());
  for (const absl::Status& refused : {make(4, 16, 1), make(4, 4, 4)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("square images with one channel; these have 4 x "));
  }
  ASSERT_TRUE(make(8, 8, 1).ok());
  absl::StatusOr<TfRecordWriter> writer = TfRecordWriter::create(folder.path() + "/test.tfrecords");
  ASSERT_TRUE(writer->write(sized(std::string(64, 'p'), 4, 16, 1)).ok() && writer->commit().ok());
  const absl::Status other = load_records(folder.path()).status();
  EXPECT_TRUE(absl::IsDataLoss(other)) << other;
  EXPECT_THAT(std::string(other.message()), HasSubstr("test.tfrecords: images of 8 x 8 x 1 and 4 x 16 x 1"));
}

TEST(Records, SplitsMustFitMemory) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_records(small_set(), folder.path()).ok());
  const absl::Status large = load_records(folder.path(), 30 * 16 - 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(large)) << large;
  EXPECT_THAT(std::string(large.message()), HasSubstr("train.tfrecords: the images of this split have more than 479"));
  EXPECT_TRUE(load_records(folder.path(), 30 * 16).ok());
}

/// As tf.io.TFRecordOptions writes them. `window_bits`: of zlib, 15 for ZLIB and 31 for GZIP.
Bytes compressed(const Bytes& bytes, int window_bits) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY), Z_OK);
  Bytes packed(deflateBound(&stream, bytes.size()) + 64);
  stream.next_in = const_cast<uint8_t*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(packed.size() - stream.avail_out);
  deflateEnd(&stream);
  return packed;
}

TEST(Records, CompressedFilesAreReadWhateverTheirName) {
  for (const int window_bits : {15, 31}) {
    const TemporaryFolder folder;
    const MnistData data = small_set();
    ASSERT_TRUE(write_records(data, folder.path()).ok());
    const Bytes plain = read_all(folder.path() + "/train.tfrecords");
    Bytes packed = compressed(plain, window_bits);
    folder.write("train.tfrecords", packed);
    const absl::StatusOr<MnistData> read = load_records(folder.path());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->train.images, data.train.images);
    EXPECT_EQ(read->train.labels, data.train.labels);
    for (size_t length = 1; length < packed.size(); ++length) {
      folder.write("train.tfrecords", Bytes(packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(length)));
      const absl::Status cut = load_records(folder.path()).status();
      EXPECT_TRUE(absl::IsDataLoss(cut)) << length << ": " << cut;
    }
    packed[packed.size() - 6] ^= 1;  // gzip: the checksum; zlib: the last bytes of the data
    folder.write("train.tfrecords", packed);
    EXPECT_TRUE(absl::IsDataLoss(load_records(folder.path()).status()));
  }
}

TEST(Records, MembersOfAGzipFileFollowEachOther) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_records(small_set(), folder.path()).ok());
  Bytes packed = compressed(read_all(folder.path() + "/train.tfrecords"), 31);
  const Bytes once = packed;
  packed.insert(packed.end(), once.begin(), once.end());
  folder.write("train.tfrecords", packed);
  const absl::StatusOr<MnistData> read = load_records(folder.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->train.count, 2 * small_set().train.count);
}

TEST(Records, ShardsAreReadInOrderAndNoneMayBeMissing) {
  const TemporaryFolder folder;
  const auto path = [&](const std::string& name) { return folder.path() + "/" + name; };
  ASSERT_TRUE(write_records(small_set(), folder.path()).ok());
  std::filesystem::rename(path("train.tfrecords"), path("train.tfrecords-00001-of-00002"));
  EXPECT_TRUE(holds_records(folder.path()));
  const auto refusal = [&] { return std::string(load_records(folder.path()).status().message()); };
  EXPECT_THAT(refusal(), HasSubstr("train.tfrecords-00000-of-00002: this shard is missing"));
  std::filesystem::copy_file(path("test.tfrecords"), path("train.tfrecords-00000-of-00002"));
  const absl::StatusOr<MnistData> read = load_records(folder.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->train.count, small_set().train.count + small_set().test.count);
  EXPECT_EQ(read->train.images[0], small_set().test.images[0]);
  EXPECT_EQ(read->train.images.back(), small_set().train.images.back());
  std::filesystem::copy_file(path("test.tfrecords"), path("train.tfrecords-00002-of-00003"));
  EXPECT_THAT(refusal(), HasSubstr("two sets of the same records"));
  std::filesystem::rename(path("train.tfrecords-00002-of-00003"), path("train.tfrecords"));
  EXPECT_THAT(refusal(), HasSubstr("train.tfrecords: two sets of the same records"));
}

TEST(Records, AMissingFileIsNotACheckpoint) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_records(small_set(), folder.path()).ok());
  std::filesystem::remove(folder.path() + "/test.tfrecords");
  const absl::Status missing = load_records(folder.path()).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/test.tfrecords: no such file"));
  for (const absl::Status& status : {missing, TfRecordReader::open(folder.path() + "/none").status(),
                                     TfRecordWriter::create("/nonexistent/file").status()}) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("checkpoint")));
  }
}

TEST(Records, ShuffledThroughABuffer) {
  Split split = split_of(5000, 1, 0);
  split.in_file_order = true;
  for (size_t i = 0; i < split.count; ++i) split.labels[i] = static_cast<uint8_t>(i / 500);  // ten parts of the file
  BatchLoader loader(split, 100, 1, 0);
  // The first batch comes from the first 1300 of the file alone; an epoch holds each part's examples all the same.
  const BatchLoader::Batch first = loader.next();
  EXPECT_LE(*std::max_element(first.labels.begin(), first.labels.end()), 2);
  EXPECT_GT(std::set<uint8_t>(first.labels.begin(), first.labels.end()).size(), 1u);
  std::vector<size_t> counts(10);
  for (const uint8_t label : first.labels) ++counts[label];
  for (size_t i = 1; i < 50; ++i) {
    const BatchLoader::Batch batch = loader.next();
    for (const uint8_t label : batch.labels) ++counts[label];
  }
  EXPECT_EQ(counts, std::vector<size_t>(10, 500));
}

TEST(TfRecord, HeaderIsTensorFlows) {
  const TemporaryFolder folder;
  absl::StatusOr<TfRecordWriter> writer = TfRecordWriter::create(folder.path() + "/x");
  ASSERT_TRUE(writer.ok() && writer->write(std::string(24, 'x')).ok() && writer->commit().ok());
  Bytes bytes = read_all(folder.path() + "/x");
  bytes.resize(kHeaderOf24.size());
  EXPECT_EQ(bytes, kHeaderOf24);
}

}  // namespace
}  // namespace gradrail::worker
