#include "gpu/direct/staged_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <tuple>
#include <vector>

#include "base/memory.h"
#include "gradrail/clock.h"
#include "tests/gpu/simulation.h"

namespace gradrail::gpu {
namespace {

using namespace std::chrono_literals;

class StagedCopiesTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) {
      compute_ = host_compute();
    } else {
      if (Simulation::is_here()) Simulation::configure("");
      absl::StatusOr<std::unique_ptr<Compute>> device = open_device(0);
      if (!device.ok() && Simulation::tolerates(device.status())) GTEST_SKIP() << device.status();
      ASSERT_TRUE(device.ok()) << device.status();
      compute_ = *std::move(device);
    }
    copies_ = *staged_copies(*compute_);
  }
  bool wait_for(CopyTicket ticket) {
    const TimePoint deadline = Clock::now() + 20s;
    while (!copies_->is_done(ticket)) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(100us);
    }
    return true;
  }
  std::unique_ptr<Compute> compute_;
  std::unique_ptr<StagedCopies> copies_;
};

/// Pinned or not, in pieces: what went up comes down, each piece in its place.
TEST_P(StagedCopiesTest, PiecesThereAndBack) {
  constexpr size_t kCount = 1 << 14, kPiece = 1000;
  const absl::StatusOr<SharedMemory> memory = SharedMemory::create("staged", 2 * kCount * sizeof(float));
  ASSERT_TRUE(memory.ok());
  const auto pin = compute_->pin(memory->data(), memory->bytes());
  auto* const up = reinterpret_cast<float*>(memory->data());
  std::iota(up, up + kCount, 1.0f);
  const auto on_device = compute_->allocate(kCount * sizeof(float));
  std::vector<float> pageable(kCount);
  for (float* down : {up + kCount, pageable.data()}) {
    std::vector<CopyTicket> tickets;
    for (size_t first = 0; first < kCount; first += kPiece) {
      const size_t bytes = std::min(kPiece, kCount - first) * sizeof(float);
      copies_->upload((*on_device)->as<float>() + first, up + first, bytes);
    }
    ASSERT_TRUE(copies_->finish().ok());
    for (size_t first = 0; first < kCount; first += kPiece) {
      const size_t bytes = std::min(kPiece, kCount - first) * sizeof(float);
      tickets.push_back(copies_->download(down + first, (*on_device)->as<float>() + first, bytes));
    }
    for (const CopyTicket ticket : tickets) ASSERT_TRUE(wait_for(ticket));
    EXPECT_TRUE(copies_->status().ok());
    EXPECT_EQ(absl::MakeConstSpan(down, kCount), absl::MakeConstSpan(up, kCount));
  }
  EXPECT_TRUE(copies_->finish().ok());
}

TEST_P(StagedCopiesTest, NothingIsDoneAtOnce) {
  EXPECT_TRUE(copies_->is_done(copies_->download(nullptr, nullptr, 0)));
  copies_->upload(nullptr, nullptr, 0);
  EXPECT_TRUE(copies_->finish().ok());
}

INSTANTIATE_TEST_SUITE_P(By, StagedCopiesTest, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "device" : "host"; });

/// A whole backward pass may be enqueued behind the gradient that is to leave.
TEST(StagedCopiesFaults, DoNotWaitForOperations) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("delay=50000");  // of each operation of a stream
  const std::unique_ptr<Compute> compute = *open_device(0);
  const std::unique_ptr<StagedCopies> copies = *staged_copies(*compute);
  const auto memory = compute->allocate(1024);
  const absl::StatusOr<SharedMemory> host = SharedMemory::create("staged", 4096);
  const auto pin = compute->pin(host->data(), host->bytes());
  const float* one = (*memory)->as<float>();
  for (int i = 0; i < 40; ++i) compute->sum(absl::MakeConstSpan(&one, 1), 4, 1.0f, (*memory)->as<float>() + 16);
  const CopyTicket behind = compute->download(host->data(), one, 16);
  const CopyTicket beside = copies->download(host->data() + 64, one, 16);
  const TimePoint deadline = Clock::now() + 20s;
  while (!copies->is_done(beside) && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(copies->is_done(beside));
  EXPECT_FALSE(compute->is_done(behind));
  EXPECT_TRUE(copies->status().ok());
  EXPECT_TRUE(compute->finish().ok());  // it writes into memory that goes before it
}

/// Blocks of many threads would leave most multiprocessors without work, because a thread packs 64 elements.
TEST(StagedCopiesLaunches, PackingOneMebibyteReachesTheMultiprocessorsOfAnH100) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("attribute=16@132");  // multiprocessors
  const std::unique_ptr<Compute> compute = *open_device(0);
  const std::unique_ptr<StagedCopies> copies = *staged_copies(*compute);
  constexpr size_t kBytes = 1 << 20, kCount = kBytes / sizeof(float);
  const auto gradient = compute->allocate(kBytes), rest = compute->allocate(kBytes), packed = compute->allocate(kBytes);
  for (const auto& [format, elements, blocks] :
       {std::tuple{GradientFormat::int8, kCount, 128}, std::tuple{GradientFormat::int4, kCount, 128},
        std::tuple{GradientFormat::int8, kCount - 64, 128}, std::tuple{GradientFormat::int8, kCount / 2, 64}}) {
    copies->pack(format, elements, (*gradient)->as<float>(), (*rest)->as<float>(), (*packed)->data());
    EXPECT_EQ(Simulation::objects().last_block_threads, 32);
    EXPECT_EQ(Simulation::objects().last_blocks, blocks) << elements;
    EXPECT_TRUE(copies->finish().ok());
  }
}

TEST(StagedCopiesFaults, LostDeviceIsReported) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("lose=0@1");
  const std::unique_ptr<Compute> compute = *open_device(0);
  const std::unique_ptr<StagedCopies> copies = *staged_copies(*compute);
  const auto memory = compute->allocate(1024);
  const float* one = (*memory)->as<float>();
  compute->sum(absl::MakeConstSpan(&one, 1), 4, 1.0f, (*memory)->as<float>() + 16);
  compute->finish().IgnoreError();
  std::vector<float> host(4);
  EXPECT_TRUE(copies->is_done(copies->download(host.data(), one, 16)));
  EXPECT_TRUE(absl::IsUnavailable(copies->status())) << copies->status();
  copies->upload((*memory)->data(), host.data(), 16);
  EXPECT_EQ(copies->finish(), copies->status());
}

}  // namespace
}  // namespace gradrail::gpu
