#include <algorithm>
#include <cmath>
#include <set>

#include "gtest/gtest.h"
#include "worker/data/dataset.h"
#include "worker/data/pixels.h"

namespace gradrail::worker {
namespace {

/// Each image spells its own number in base 256, so that a batch identifies its examples.
Split numbered_split(size_t count) {
  Split split{.count = count, .pixels = 5};
  for (size_t i = 0; i < count; ++i) {
    split.images.insert(split.images.end(), {static_cast<uint8_t>(i % 256), static_cast<uint8_t>(i / 256), 0, 7, 255});
    split.labels.push_back(static_cast<uint8_t>(i % 10));
  }
  return split;
}

std::vector<size_t> examples(const BatchLoader::Batch& batch) {
  std::vector<size_t> numbers;
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    const float* image = batch.images.data() + i * 5;
    numbers.push_back(static_cast<size_t>(std::lround(image[0] * 255.0f)) +
                      256 * static_cast<size_t>(std::lround(image[1] * 255.0f)));
    EXPECT_EQ(numbers.back() % 10, batch.labels[i]);
    EXPECT_EQ(image[4], 1.0f);
  }
  return numbers;
}

std::vector<size_t> epoch(BatchLoader& loader) {
  std::vector<size_t> all;
  for (size_t i = 0; i < loader.batches_per_epoch(); ++i) {
    const std::vector<size_t> batch = examples(loader.next());
    all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

TEST(DatasetLoader, EpochHasEachExampleAtMostOnce) {
  const Split split = numbered_split(1003);
  BatchLoader loader(split, 10, 1, 0);
  ASSERT_EQ(loader.batches_per_epoch(), 100u);
  for (int i = 0; i < 3; ++i) {
    const std::vector<size_t> seen = epoch(loader);
    EXPECT_EQ(seen.size(), 1000u);
    EXPECT_EQ(std::set<size_t>(seen.begin(), seen.end()).size(), 1000u);
  }
}

TEST(DatasetLoader, TowersTakeTheBatchesOfOneQueueInTurn) {
  const Split split = numbered_split(101);
  BatchLoader whole(split, 12, 1, 0);
  std::vector<BatchLoader> parts;
  for (size_t i = 0; i < 3; ++i) {
    parts.emplace_back(split, 4, 1, 0, BatchLoader::Form::kDense, BatchLoader::Turn{.index = i, .count = 3});
    EXPECT_EQ(parts.back().batches_per_epoch(), whole.batches_per_epoch());
  }
  for (int step = 0; step < 20; ++step) {  // three epochs: the order changes for all of them at once
    std::vector<size_t> together;
    for (BatchLoader& part : parts) {
      const std::vector<size_t> batch = examples(part.next());
      together.insert(together.end(), batch.begin(), batch.end());
    }
    ASSERT_EQ(together, examples(whole.next())) << "step " << step;
  }
}

TEST(DatasetLoader, CentredPixelsLieAroundZero) {
  const Split split = numbered_split(256);
  BatchLoader plain(split, 256, 1, 0), centred(split, 256, 1, 0, BatchLoader::Form::kCentred);
  const BatchLoader::Batch expected = plain.next(), batch = centred.next();
  ASSERT_EQ(batch.images.size(), expected.images.size());
  for (size_t i = 0; i < batch.images.size(); ++i) ASSERT_NEAR(batch.images[i], expected.images[i] - 0.5f, 1e-7);
  EXPECT_EQ(batch.labels, expected.labels);
}

TEST(DatasetLoader, EpochsShuffleAnewAndLeaveOthersOut) {
  const Split split = numbered_split(1003);
  BatchLoader loader(split, 10, 1, 0);
  const std::vector<size_t> first = epoch(loader);
  const std::vector<size_t> second = epoch(loader);
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
  EXPECT_NE(first, second);
  EXPECT_NE(std::set<size_t>(first.begin(), first.end()), std::set<size_t>(second.begin(), second.end()));
}

TEST(DatasetLoader, WholeMultipleHasAllExamples) {
  const Split split = numbered_split(40);
  BatchLoader loader(split, 20, 9, 0);
  for (int i = 0; i < 4; ++i) {
    const std::vector<size_t> seen = epoch(loader);
    EXPECT_EQ(std::set<size_t>(seen.begin(), seen.end()).size(), 40u);
  }
}

TEST(DatasetLoader, SameSeedAndStreamGiveTheSameOrder) {
  const Split split = numbered_split(500);
  BatchLoader loader(split, 50, 7, 3);
  BatchLoader again(split, 50, 7, 3);
  BatchLoader other_stream(split, 50, 7, 4);
  BatchLoader other_seed(split, 50, 8, 3);
  for (int i = 0; i < 3; ++i) {
    const std::vector<size_t> seen = epoch(loader);
    EXPECT_EQ(seen, epoch(again));
    EXPECT_NE(seen, epoch(other_stream));
    EXPECT_NE(seen, epoch(other_seed));
  }
}

TEST(DatasetLoader, PrefetchChangesOnlyWhenTheWorkIsDone) {
  const Split split = numbered_split(300);
  BatchLoader plain(split, 100, 1, 0);
  BatchLoader ahead(split, 100, 1, 0);
  for (int i = 0; i < 10; ++i) {
    ahead.prefetch();
    if (i % 2 == 0) ahead.prefetch();
    EXPECT_EQ(examples(plain.next()), examples(ahead.next())) << "batch " << i;
  }
}

TEST(DatasetLoader, PrefetchLeavesTheBatchInUseAlone) {
  const Split split = numbered_split(300);
  BatchLoader loader(split, 100, 1, 0);
  const BatchLoader::Batch in_use = loader.next();
  const std::vector<size_t> before = examples(in_use);
  loader.prefetch();
  EXPECT_EQ(examples(in_use), before);
  EXPECT_NE(examples(loader.next()), before);
  EXPECT_EQ(examples(in_use), before);
}

TEST(DatasetLoader, PixelsAreScaledToOne) {
  // Longer than a register and of odd length, so that the rest loop runs too.
  std::vector<uint8_t> bytes(256 + 3);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  std::vector<float> scaled(bytes.size() + 1, -1.0f);
  scale_pixels(bytes.data(), bytes.size(), scaled.data());
  for (size_t i = 0; i < bytes.size(); ++i) EXPECT_FLOAT_EQ(scaled[i], static_cast<float>(bytes[i]) / 255.0f);
  EXPECT_EQ(scaled[0], 0.0f);
  EXPECT_EQ(scaled[255], 1.0f);
  EXPECT_EQ(scaled.back(), -1.0f);
}

}  // namespace
}  // namespace gradrail::worker
