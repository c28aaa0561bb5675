#include "gpu/compute/device_compute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "gradrail/clock.h"

#include "base/status.h"
#include "tests/gpu/simulation.h"

namespace gradrail::gpu {
namespace {

class DeviceComputeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Simulation::is_here()) Simulation::configure("devices=2,delay=300");
    absl::StatusOr<std::unique_ptr<Compute>> opened = open_device(0);
    if (!opened.ok() && Simulation::tolerates(opened.status())) GTEST_SKIP() << message_of(opened.status());
    ASSERT_TRUE(opened.ok()) << opened.status();
    compute_ = *std::move(opened);
  }

  std::unique_ptr<Memory> upload(const std::vector<float>& values) {
    absl::StatusOr<std::unique_ptr<Memory>> memory = compute_->allocate(values.size() * sizeof(float));
    EXPECT_TRUE(memory.ok()) << memory.status();
    compute_->upload((*memory)->data(), values.data(), values.size() * sizeof(float));
    return *std::move(memory);
  }

  std::unique_ptr<Compute> compute_;
};

std::vector<float> counted(size_t count, float first = 0.0f) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST_F(DeviceComputeTest, WhatIsUploadedComesBack) {
  const std::vector<float> values = counted(10000);
  const std::unique_ptr<Memory> memory = upload(values);
  std::vector<float> back(values.size(), -1.0f);
  const CopyTicket ticket = compute_->download(back.data(), memory->data(), back.size() * sizeof(float));
  ASSERT_TRUE(compute_->wait(ticket).ok());
  EXPECT_EQ(back, values);
}

TEST_F(DeviceComputeTest, ProductsAreRowMajorWithEitherOperandTransposed) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};                    // [2, 3]
  const std::vector<float> b = {1, 0, 2, 0, 0, 1, 1, 0, 3, 0, 0, 1};  // [3, 4]
  const std::vector<float> expected = {10, 2, 4, 3, 22, 5, 13, 6};    // [2, 4]
  const auto transposed = [](const std::vector<float>& x, size_t rows, size_t columns) {
    std::vector<float> y(x.size());
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < columns; ++j) y[j * rows + i] = x[i * columns + j];
    return y;
  };
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const auto left = upload(ta ? transposed(a, 2, 3) : a), right = upload(tb ? transposed(b, 3, 4) : b);
      const auto result = upload(std::vector<float>(8, std::nanf("")));
      const ProductShape shape = {.m = 2, .k = 3, .n = 4, .transposed_a = ta, .transposed_b = tb};
      compute_->product(shape, left->as<float>(), right->as<float>(), result->as<float>(), false);
      compute_->product(shape, left->as<float>(), right->as<float>(), result->as<float>(), true);
      std::vector<float> back(8);
      ASSERT_TRUE(compute_->wait(compute_->download(back.data(), result->data(), 32)).ok());
      for (size_t i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(back[i], 2 * expected[i]) << ta << tb << i;
    }
  }
}

TEST_F(DeviceComputeTest, ColumnSumsOfMatricesOfEverySize) {
  for (const size_t rows : {0u, 1u, 7u, 300u, 2u}) {
    const std::unique_ptr<Memory> x = upload(counted(rows * 3 + 1));
    const std::unique_ptr<Memory> sums = upload(std::vector<float>(3, std::nanf("")));
    compute_->column_sums(rows, 3, x->as<float>(), sums->as<float>());
    std::vector<float> back(3);
    ASSERT_TRUE(compute_->wait(compute_->download(back.data(), sums->data(), 12)).ok());
    for (size_t j = 0; j < 3; ++j) {
      float expected = 0;
      for (size_t i = 0; i < rows; ++i) expected += static_cast<float>(3 * i + j);
      EXPECT_FLOAT_EQ(back[j], expected) << rows;
    }
  }
}

TEST_F(DeviceComputeTest, UploadsAndOperationsGoInOrder) {
  const std::unique_ptr<Memory> ones = upload(std::vector<float>(1000, 1.0f));
  const std::unique_ptr<Memory> target = upload(std::vector<float>(1000, 0.0f));
  for (int round = 0; round < 5; ++round) {
    const float* sources[] = {target->as<float>(), ones->as<float>()};
    compute_->sum(sources, 1000, 2.0f, target->as<float>());
    const std::vector<float> fresh(1000, static_cast<float>(round));
    compute_->upload(ones->data(), fresh.data(), 4000);
    ASSERT_TRUE(compute_->finish().ok());
  }
  std::vector<float> back(1000);
  ASSERT_TRUE(compute_->wait(compute_->download(back.data(), target->data(), 4000)).ok());
  EXPECT_EQ(back, std::vector<float>(1000, 54.0f));  // ((((0+1)·2+0)·2+1)·2+2)·2+3)·2
}

TEST_F(DeviceComputeTest, ADownloadSeesWhatWasEnqueuedBeforeIt) {
  const std::unique_ptr<Memory> ones = upload(std::vector<float>(1000, 1.0f));
  const std::unique_ptr<Memory> target = upload(std::vector<float>(1000, 0.0f));
  std::vector<float> back(1000);
  const auto pin = compute_->pin(back.data(), 4000);
  for (int i = 0; i < 30; ++i) {
    const float* sources[] = {target->as<float>(), ones->as<float>()};
    compute_->sum(sources, 1000, 1.0f, target->as<float>());
  }
  ASSERT_TRUE(compute_->wait(compute_->download(back.data(), target->data(), 4000)).ok());
  EXPECT_EQ(back, std::vector<float>(1000, 30.0f));
}

TEST_F(DeviceComputeTest, AllocationsAreAligned) {
  for (const size_t bytes : {0u, 1u, 257u, 5000u}) {
    const auto memory = compute_->allocate(bytes);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ((*memory)->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>((*memory)->data()) % 256, 0u);
  }
}

TEST_F(DeviceComputeTest, NothingIsNothing) {
  compute_->upload(nullptr, nullptr, 0);
  compute_->product({.m = 0, .k = 5, .n = 5}, nullptr, nullptr, nullptr, false);
  compute_->column_sums(5, 0, nullptr, nullptr);
  EXPECT_TRUE(compute_->wait(compute_->download(nullptr, nullptr, 0)).ok());
  EXPECT_TRUE(compute_->finish().ok());
}

/// The memory returns to its device at the end, which a compute of its own would have closed: a crash.
TEST_F(DeviceComputeTest, MemoryMayOutliveItsCompute) {
  const std::unique_ptr<Memory> memory = upload({1, 2, 3});
  compute_.reset();
}

TEST_F(DeviceComputeTest, HostMemoryIsPinnedOnce) {
  std::vector<float> values(5000);
  auto first = compute_->pin(values.data(), 20000);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(compute_->pin(values.data() + 10, 100).status().code(), absl::StatusCode::kAlreadyExists);
  first->reset();
  EXPECT_TRUE(compute_->pin(values.data() + 10, 100).ok());
}

}  // namespace
}  // namespace gradrail::gpu
