// TFRecord files: what TensorFlow wrote is read, what we wrote is read again, what is damaged is named.
#include "worker/data/records.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "base/random.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "tests/worker/data/idx_files.h"
#include "worker/data/tf_record.h"

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
  for (const auto& [ours, theirs] :
       {std::pair{&data.train, &read->train}, std::pair{&data.validation, &read->validation},
        std::pair{&data.test, &read->test}}) {
    EXPECT_EQ(ours->count, theirs->count);
    EXPECT_EQ(ours->pixels, theirs->pixels);
    EXPECT_EQ(ours->images, theirs->images);
    EXPECT_EQ(ours->labels, theirs->labels);
    EXPECT_TRUE(theirs->in_file_order);
  }
}

/// An Example with image_raw of four bytes and a label, as Python's protobuf serializes it.
std::string example(const std::string& pixels, char label, const std::string& image_name = "image_raw",
                    const std::string& label_name = "label") {
  const auto field = [](char tag, const std::string& content) {
    return std::string{tag, static_cast<char>(content.size())} + content;
  };
  const std::string image = field(0x0a, field(0x0a, pixels));
  const std::string number = field(0x1a, field(0x0a, std::string(1, label)));
  return field(0x0a, field(0x0a, field(0x0a, image_name) + field(0x12, image)) +
                         field(0x0a, field(0x0a, label_name) + field(0x12, number)));
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
        std::pair{example(std::string(16, 'p'), 3, "image_raw", "digit"), "has no int64 label"}}) {
    const absl::Status status = load({good, bad});
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("train.tfrecords: record 1: ")));
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }
  EXPECT_THAT(std::string(load({}).message()), HasSubstr("no records"));
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
  for (size_t batch = 1; batch < 50; ++batch)
    for (const uint8_t label : loader.next().labels) ++counts[label];
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
