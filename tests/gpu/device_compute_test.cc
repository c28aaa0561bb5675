#include "gpu/device_compute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/status.h"
#include "tests/gpu/simulation.h"

namespace gradrail::gpu {
namespace {

class DeviceComputeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Simulation::is_here()) Simulation::configure("devices=2,delay=300");
    absl::StatusOr<std::unique_ptr<Compute>> opened = open_device(0);
    if (!opened.ok() && !Simulation::is_here()) GTEST_SKIP() << message_of(opened.status());
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

}  // namespace
}  // namespace gradrail::gpu
