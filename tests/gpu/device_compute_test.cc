#include "gpu/compute/device_compute.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace gradrail::gpu
