// A training split that is too large for memory: its batches are those of the same split in memory.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "base/random.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "tests/worker/data/idx_files.h"
#include "worker/data/record_queue.h"
#include "worker/data/records.h"

namespace gradrail::worker {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

constexpr size_t kPixels = 9;  // a square, as write_records() needs it

/// Each image spells its own number in base 256, so that a batch identifies its examples.
Split numbered_split(size_t first, size_t count) {
  Split split{.count = count, .pixels = kPixels};
  for (size_t i = first; i < first + count; ++i) {
    Bytes image(kPixels);
    for (size_t digit = 0; digit < 3; ++digit) image[digit] = static_cast<uint8_t>(i >> (8 * digit));
    image[kPixels - 1] = 255;
    split.images.insert(split.images.end(), image.begin(), image.end());
    split.labels.push_back(static_cast<uint8_t>(i % 10));
  }
  return split;
}

/// A data set in `shards` files of different lengths.
class DataSet {
 public:
  explicit DataSet(size_t count, size_t shards = 1, bool packed = false) {
    size_t first = 0;
    for (size_t i = 0; i < shards; ++i) {
      const size_t end = count * (i + 1) * (i + 1) / (shards * shards);
      EXPECT_TRUE(
          write_records({.train = numbered_split(first, end - first), .test = numbered_split(0, 3)}, path()).ok());
      first = end;
      if (packed) pack(path() + "/train.tfrecords");
      if (shards > 1) fs::rename(path() + "/train.tfrecords", shard(i, shards));
    }
    fs::remove(path() + "/validation.tfrecords");
  }

  const std::string& path() const { return folder_.path(); }
  std::string shard(size_t i, size_t shards) const {
    return fmt::format("{}/train.tfrecords-{:05}-of-{:05}", path(), i, shards);
  }

  Split in_memory() const { return load(RecordLimits()); }
  Split streamed() const {
    Split split = load({.train_bytes = 0});
    EXPECT_NE(split.source, nullptr);
    EXPECT_TRUE(split.images.empty() && split.labels.empty());
    return split;
  }

 private:
  static void pack(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    const Bytes packed = gzip_bytes({std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()});
    std::ofstream(file, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(packed.data()), static_cast<std::streamsize>(packed.size()));
  }

  Split load(RecordLimits limits) const {
    absl::StatusOr<MnistData> data = load_records(path(), limits);
    EXPECT_TRUE(data.ok()) << data.status();
    return std::move(data->train);
  }

  TemporaryFolder folder_;
};

std::vector<size_t> numbers(const BatchLoader::Batch& batch) {
  std::vector<size_t> numbers;
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    size_t number = 0;
    for (size_t digit = 3; digit-- > 0;)
      number = 256 * number + static_cast<size_t>(batch.images[i * kPixels + digit] * 255.0f + 0.5f);
    numbers.push_back(number);
    EXPECT_EQ(number % 10, batch.labels[i]);
  }
  return numbers;
}

TEST(StreamedRecords, OrderIsThatOfTheSplitInMemory) {
  // Smaller and larger than the shuffle buffer of 1000 + 3 · batch; with and without a remainder at the end.
  for (const auto& [count, shards, packed] :
       {std::tuple<size_t, size_t, bool>{103, 1, false}, {1300, 3, true}, {1330, 2, false}, {4007, 5, true}}) {
    SCOPED_TRACE(::testing::Message() << count << " records in " << shards);
    const DataSet set(count, shards, packed);
    const Split in_memory = set.in_memory(), streamed = set.streamed();
    EXPECT_EQ(streamed.count, count);
    EXPECT_EQ(streamed.density, in_memory.density);
    BatchLoader expected(in_memory, 100, 7, 3), loader(streamed, 100, 7, 3);
    ASSERT_EQ(loader.batches_per_epoch(), count / 100);
    for (size_t step = 0; step < 3 * loader.batches_per_epoch() + 2; ++step) {
      if (step % 3 == 0) loader.prefetch();
      ASSERT_EQ(numbers(loader.next().value()), numbers(expected.next().value())) << "step " << step;
    }
  }
}

TEST(StreamedRecords, EpochHasEachRecordOnce) {
  const DataSet set(3000, 4);
  const Split split = set.streamed();
  BatchLoader loader(split, 50, 1, 0);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<size_t> seen;
    for (size_t i = 0; i < loader.batches_per_epoch(); ++i)
      for (const size_t number : numbers(loader.next().value())) EXPECT_TRUE(seen.insert(number).second) << number;
    EXPECT_EQ(seen.size(), 3000u);
  }
}

TEST(StreamedRecords, EachStepCanBeReturnedTo) {
  const DataSet set(5003, 3);
  const Split in_memory = set.in_memory(), streamed = set.streamed();
  BatchLoader expected(in_memory, 20, 5, 1), loader(streamed, 20, 5, 1);
  const char* const given = std::getenv("GRADRAIL_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  SCOPED_TRACE(::testing::Message() << "GRADRAIL_TEST_SEED=" << seed << " repeats this test");
  Random random(seed);
  uint64_t step = 0;
  for (int jump = 0; jump < 150; ++jump) {
    // As workers do: mostly to the next step, over a few steps, or far back to a checkpoint.
    const uint64_t kind = random.below(4);
    step = kind == 0 ? random.below(4 * loader.batches_per_epoch()) : kind == 1 ? step + random.below(80) : step + 1;
    loader.seek(step);
    expected.seek(step);
    if (random.below(2) == 0) loader.prefetch();
    ASSERT_EQ(numbers(loader.next().value()), numbers(expected.next().value())) << "step " << step;
  }
}

TEST(StreamedRecords, PrefetchLeavesTheBatchInUseAlone) {
  const DataSet set(2000);
  const Split split = set.streamed();
  BatchLoader loader(split, 100, 1, 0);
  const BatchLoader::Batch in_use = loader.next().value();
  const std::vector<size_t> before = numbers(in_use);
  for (int i = 0; i < 100; ++i) {  // until the thread has the next batch, too
    loader.prefetch();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(numbers(in_use), before);
  EXPECT_NE(numbers(loader.next().value()), before);
  EXPECT_EQ(numbers(in_use), before);
}

TEST(StreamedRecords, SparseBatchesAreThoseOfTheSplitInMemory) {
  const DataSet set(1500);
  const Split in_memory = set.in_memory(), streamed = set.streamed();
  BatchLoader expected(in_memory, 40, 1, 0, BatchLoader::Form::kSparse);
  BatchLoader loader(streamed, 40, 1, 0, BatchLoader::Form::kSparse);
  const auto text_of = [](const SparseBatch& batch) {
    std::string text;
    for (const auto& lists : {batch.by_image, batch.by_pixel})
      for (const SparseValues& values : lists)
        for (const SparseValue& value : values) text += fmt::format("{}:{} ", value.row(), value.value());
    return text;
  };
  for (int step = 0; step < 80; ++step) {
    const SparseBatch batch = loader.next_sparse().value(), other = expected.next_sparse().value();
    const std::string before = text_of(batch);
    ASSERT_EQ(before, text_of(other)) << "step " << step;
    loader.prefetch();
    ASSERT_EQ(text_of(batch), before) << "step " << step;
  }
}

TEST(StreamedRecords, TowersShareOneReader) {
  const DataSet set(2500, 2);
  const Split in_memory = set.in_memory();
  Split streamed = set.streamed();
  std::atomic<int> readers = 0;
  streamed.source->set_on_thread([&] { ++readers; });
  std::vector<BatchLoader> loaders;
  const auto turn = [](size_t tower) { return BatchLoader::Turn{.index = tower, .count = 3}; };
  for (size_t i = 0; i < 3; ++i) loaders.emplace_back(streamed, 30, 1, 0, BatchLoader::Form::kDense, turn(i));
  std::vector<std::thread> towers;
  for (size_t tower = 0; tower < 3; ++tower) {
    towers.emplace_back([&, tower] {
      BatchLoader& loader = loaders[tower];
      BatchLoader expected(in_memory, 30, 1, 0, BatchLoader::Form::kDense, turn(tower));
      for (uint64_t step = 0; step < 80; ++step) {  // several epochs
        // All of them return to an earlier step, as after the loss of a parameter server.
        const uint64_t position = step < 60 ? step : step - 50;
        loader.seek(position);
        expected.seek(position);
        ASSERT_EQ(numbers(loader.next().value()), numbers(expected.next().value())) << tower << ", " << step;
        loader.prefetch();
      }
    });
  }
  for (std::thread& tower : towers) tower.join();
  EXPECT_EQ(readers, 1);
}

/// Batches until the error that must come within two epochs.
absl::Status first_error(BatchLoader& loader) {
  for (size_t step = 0; step < 2 * loader.batches_per_epoch() + 1; ++step) {
    loader.prefetch();
    if (const absl::Status status = loader.next().status(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

TEST(StreamedRecords, DamageDuringTheRunIsNamed) {
  const DataSet set(4000, 2);  // 1000 and 3000 records
  const std::string second = set.shard(1, 2);
  const auto record_bytes = static_cast<std::streamoff>(fs::file_size(second) / 3000);
  const auto damaged = [&](auto&& damage) {
    const Split split = set.streamed();
    fs::copy_file(second, second + ".good", fs::copy_options::overwrite_existing);
    damage();
    BatchLoader loader(split, 100, 1, 0);
    const absl::Status status = first_error(loader);
    EXPECT_EQ(loader.next().status(), status) << "an error must not turn into a batch";
    fs::rename(second + ".good", second);
    return status;
  };
  const absl::Status turned = damaged([&] {
    std::fstream file(second, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(2500 * record_bytes + record_bytes - 8);
    file.put('\x7f');
  });
  EXPECT_TRUE(absl::IsDataLoss(turned)) << turned;
  EXPECT_THAT(std::string(turned.message()), HasSubstr(second + ": record 2500: the checksum of its content is wrong"));

  const absl::Status shorter = damaged([&] { fs::resize_file(second, static_cast<uintmax_t>(2000 * record_bytes)); });
  EXPECT_TRUE(absl::IsDataLoss(shorter)) << shorter;
  EXPECT_THAT(std::string(shorter.message()),
              HasSubstr(second + ": record 2000: the file had 3000 records at the start of this task"));

  const absl::Status cut = damaged([&] { fs::resize_file(second, static_cast<uintmax_t>(2000 * record_bytes + 5)); });
  EXPECT_TRUE(absl::IsDataLoss(cut)) << cut;
  EXPECT_THAT(std::string(cut.message()), HasSubstr("record 2000: the file ends within it"));

  const absl::Status gone = damaged([&] { fs::remove(second); });
  EXPECT_TRUE(absl::IsNotFound(gone)) << gone;
  EXPECT_THAT(std::string(gone.message()), HasSubstr(second));

  const absl::Status other =
      damaged([&] { fs::copy_file(set.shard(0, 2), second, fs::copy_options::overwrite_existing); });
  EXPECT_THAT(std::string(other.message()), HasSubstr("record 1000: the file had 3000 records"));
}

TEST(StreamedRecords, SplitsThatAreEvaluatedMustFitMemory) {
  const DataSet set(10);
  const absl::Status large = load_records(set.path(), {.whole_bytes = 3 * kPixels - 1}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(large)) << large;
  EXPECT_THAT(std::string(large.message()), HasSubstr("test.tfrecords: its images have 27 bytes"));
  EXPECT_TRUE(load_records(set.path(), {.whole_bytes = 3 * kPixels}).ok());
}

}  // namespace
}  // namespace gradrail::worker
