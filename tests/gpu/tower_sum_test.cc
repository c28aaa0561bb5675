#include "gpu/reduce/tower_sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "gpu/compute/device_compute.h"
#include "tests/gpu/simulation.h"

namespace gradrail::gpu {
namespace {

using ::testing::HasSubstr;

struct Case {
  const char* name;
  Reduce reduce;
  bool on_devices;
};

/// For googletest, which would print the bytes, and they differ from run to run.
void PrintTo(const Case& setting, std::ostream* out) { *out << setting.name; }

constexpr size_t kTowers = 3;

/// Towers on threads of their own, as worker/ has them.
class TowerSumTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (Simulation::is_here()) Simulation::configure("devices=3,delay=200");
    const Case& setting = GetParam();
    for (size_t tower = 0; tower < kTowers; ++tower) {
      if (!setting.on_devices) {
        computes_.push_back(host_compute());
        continue;
      }
      absl::StatusOr<std::unique_ptr<Compute>> opened = open_device(static_cast<int>(tower));
      if (!opened.ok() && Simulation::tolerates(opened.status())) GTEST_SKIP() << message_of(opened.status());
      ASSERT_TRUE(opened.ok()) << opened.status();
      computes_.push_back(*std::move(opened));
    }
    make_sum(std::chrono::seconds(20));
  }

  void make_sum(Duration answer_timeout) {
    std::vector<Compute*> towers;
    for (const auto& compute : computes_) towers.push_back(compute.get());
    absl::StatusOr<std::unique_ptr<TowerSum>> made =
        tower_sum(towers, {.reduce = GetParam().reduce, .answer_timeout = answer_timeout});
    ASSERT_TRUE(made.ok()) << made.status();
    sum_ = *std::move(made);
  }

  void on_each_tower(const std::function<void(size_t)>& work) {
    std::vector<std::thread> threads;
    for (size_t tower = 0; tower < kTowers; ++tower) threads.emplace_back(work, tower);
    for (std::thread& thread : threads) thread.join();
  }

  std::unique_ptr<Memory> filled(size_t tower, const std::vector<float>& values) {
    absl::StatusOr<std::unique_ptr<Memory>> memory = computes_[tower]->allocate(values.size() * sizeof(float));
    EXPECT_TRUE(memory.ok()) << memory.status();
    computes_[tower]->upload((*memory)->data(), values.data(), values.size() * sizeof(float));
    return *std::move(memory);
  }

  std::vector<float> read(size_t tower, const float* data, size_t count) {
    std::vector<float> values(count, std::nanf(""));
    Compute& compute = *computes_[tower];
    const absl::Status status = compute.wait(compute.download(values.data(), data, count * sizeof(float)));
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }

  std::vector<std::unique_ptr<Compute>> computes_;
  std::unique_ptr<TowerSum> sum_;
};

/// Value of tower t in element i of buffer b. Whole numbers, so that every order of addition gives the same result.
float gradient(size_t step, size_t tower, size_t buffer, size_t i) {
  return static_cast<float>(3 * ((step + 1) * (tower * tower + 1) + buffer + i % 97));
}

float mean(size_t step, size_t buffer, size_t i) {
  float sum = 0;
  for (size_t tower = 0; tower < kTowers; ++tower) sum += gradient(step, tower, buffer, i);
  return sum / kTowers;
}

constexpr size_t kCounts[] = {1, 10000, 0, 257};

TEST_P(TowerSumTest, EveryTowerHasTheMeanOfEveryBuffer) {
  on_each_tower([&](size_t tower) {
    // Once: in a later step, to take or give back memory could wait for a device that waits for this tower.
    std::vector<std::unique_ptr<Memory>> buffers;
    for (const size_t count : kCounts) buffers.push_back(filled(tower, std::vector<float>(count)));
    for (size_t step = 0; step < 4; ++step) {
      std::vector<std::vector<float>> hosts;
      std::vector<CopyTicket> tickets;
      hosts.reserve(std::size(kCounts));
      for (size_t b = 0; b < std::size(kCounts); ++b) {
        std::vector<float> values(kCounts[b]);
        for (size_t i = 0; i < values.size(); ++i) values[i] = gradient(step, tower, b, i);
        computes_[tower]->upload(buffers[b]->data(), values.data(), values.size() * sizeof(float));
        hosts.emplace_back(kCounts[b], std::nanf(""));
        const absl::StatusOr<CopyTicket> ticket =
            sum_->start(tower, {{buffers[b]->as<float>(), kCounts[b], tower == 0 ? hosts[b].data() : nullptr}});
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        tickets.push_back(*ticket);
      }
      for (size_t b = 0; b < std::size(kCounts); ++b) {
        const absl::Status status = sum_->wait(tower, tickets[b]);
        ASSERT_TRUE(status.ok()) << status;
        const std::vector<float> values = read(tower, buffers[b]->as<float>(), kCounts[b]);
        for (size_t i = 0; i < kCounts[b]; ++i) {
          ASSERT_NEAR(values[i], mean(step, b, i), 1e-6 * mean(step, b, i)) << tower << " " << b << " " << i;
          if (tower == 0) {
            ASSERT_EQ(hosts[b][i], values[i]);
          }
        }
      }
    }
  });
}

/// Each copy of pageable memory waits for the tower's work.
TEST_P(TowerSumTest, SmallBuffersAreCopiedWithoutAWait) {
  GRADRAIL_NEEDS_SIMULATION();
  std::vector<std::vector<std::unique_ptr<Memory>>> buffers(kTowers);
  for (size_t tower = 0; tower < kTowers; ++tower) {
    for (int i = 0; i < 4; ++i) buffers[tower].push_back(filled(tower, std::vector<float>(10)));
    ASSERT_TRUE(computes_[tower]->finish().ok());
  }
  const int before = Simulation::objects().pageable_copies;
  on_each_tower([&](size_t tower) {
    std::vector<TowerSum::Part> parts;
    for (const auto& buffer : buffers[tower]) parts.push_back({buffer->as<float>(), 10, nullptr});
    const absl::StatusOr<CopyTicket> ticket = sum_->start(tower, parts);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_TRUE(sum_->wait(tower, *ticket).ok());
    EXPECT_TRUE(computes_[tower]->finish().ok());
  });
  EXPECT_EQ(Simulation::objects().pageable_copies, before);
}

/// A bias goes with its weights: a kernel of NCCL takes some microseconds, also for ten elements.
TEST_P(TowerSumTest, PartsOfOneCallAreOneLaunch) {
  std::vector<std::vector<std::unique_ptr<Memory>>> buffers(kTowers);
  for (size_t tower = 0; tower < kTowers; ++tower) {
    for (const size_t count : kCounts)
      buffers[tower].push_back(filled(tower, std::vector<float>(count, static_cast<float>(tower + count % 7))));
    ASSERT_TRUE(computes_[tower]->finish().ok());
  }
  const int before = Simulation::is_here() ? Simulation::objects().started : 0;
  on_each_tower([&](size_t tower) {
    std::vector<std::vector<float>> hosts;
    std::vector<TowerSum::Part> parts;
    for (const size_t count : kCounts) hosts.emplace_back(count, std::nanf(""));
    for (size_t b = 0; b < std::size(kCounts); ++b)
      parts.push_back({buffers[tower][b]->as<float>(), kCounts[b], tower == 1 ? hosts[b].data() : nullptr});
    const absl::StatusOr<CopyTicket> ticket = sum_->start(tower, parts);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    ASSERT_TRUE(sum_->wait(tower, *ticket).ok());
    for (size_t b = 0; b < std::size(kCounts); ++b) {
      const std::vector<float> expected(kCounts[b], static_cast<float>(1 + kCounts[b] % 7));
      EXPECT_EQ(read(tower, parts[b].gradient, kCounts[b]), expected);
      if (tower == 1) {
        EXPECT_EQ(hosts[b], expected);
      }
    }
  });
  if (!Simulation::is_here() || GetParam().reduce != Reduce::nccl) return;
  EXPECT_EQ(Simulation::objects().started - before, static_cast<int>(kTowers));
}

/// The mean is taken of what was computed, not of what the memory held when start() was called.
TEST_P(TowerSumTest, StartsBehindWhatTheTowerEnqueued) {
  on_each_tower([&](size_t tower) {
    Compute& compute = *computes_[tower];
    const std::unique_ptr<Memory> ones = filled(tower, std::vector<float>(1000, 1.0f));
    const std::unique_ptr<Memory> target = filled(tower, std::vector<float>(1000, -5.0f));
    for (size_t i = 0; i < 10 * (tower + 1); ++i) {
      const float* sources[] = {target->as<float>(), ones->as<float>()};
      compute.sum(sources, 1000, 1.0f, target->as<float>());
    }
    const absl::StatusOr<CopyTicket> ticket = sum_->start(tower, {{target->as<float>(), 1000, nullptr}});
    ASSERT_TRUE(ticket.ok());
    ASSERT_TRUE(sum_->wait(tower, *ticket).ok());
    EXPECT_EQ(read(tower, target->as<float>(), 1000), std::vector<float>(1000, 15.0f));
  });
}

TEST_P(TowerSumTest, ATowerThatGivesUpFreesTheOthers) {
  on_each_tower([&](size_t tower) {
    if (tower == 2) return sum_->abort(absl::UnavailableError("GPU 2 was lost"));
    const std::unique_ptr<Memory> memory = filled(tower, {1, 2, 3});
    const absl::StatusOr<CopyTicket> ticket = sum_->start(tower, {{memory->as<float>(), 3, nullptr}});
    const absl::Status status = ticket.ok() ? sum_->wait(tower, *ticket) : ticket.status();
    EXPECT_THAT(std::string(message_of(status)), HasSubstr("GPU 2 was lost"));
  });
}

TEST_P(TowerSumTest, ATowerThatNeverComesIsNoticed) {
  make_sum(std::chrono::milliseconds(300));
  on_each_tower([&](size_t tower) {
    if (tower == 1) return;
    const std::unique_ptr<Memory> memory = filled(tower, {1, 2, 3});
    const absl::StatusOr<CopyTicket> ticket = sum_->start(tower, {{memory->as<float>(), 3, nullptr}});
    const absl::Status status = ticket.ok() ? sum_->wait(tower, *ticket) : ticket.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  });
}

/// Allocation, pinning or loading of other towers in their first step could wait for a kernel that waits for them.
TEST_P(TowerSumTest, NothingIsEnqueuedOnDevicesBeforeEveryTowerIsThere) {
  if (GetParam().reduce != Reduce::nccl) return;
  std::atomic<size_t> come = 0;
  on_each_tower([&](size_t tower) {
    const std::unique_ptr<Memory> memory = filled(tower, {1, 2, 3});
    std::this_thread::sleep_for(std::chrono::milliseconds(50 * tower));
    ++come;
    const absl::StatusOr<CopyTicket> ticket = sum_->start(tower, {{memory->as<float>(), 3, nullptr}});
    EXPECT_EQ(come, kTowers);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_TRUE(sum_->wait(tower, *ticket).ok());
  });
}

TEST_P(TowerSumTest, EndsThoughAMeanIsUnderWayThatNeverComes) {
  make_sum(std::chrono::milliseconds(300));
  std::vector<std::unique_ptr<Memory>> memory;
  for (size_t tower = 0; tower < kTowers; ++tower) memory.push_back(filled(tower, {1, 2, 3}));
  on_each_tower([&](size_t tower) {
    const absl::StatusOr<CopyTicket> ticket = sum_->start(tower, {{memory[tower]->as<float>(), 3, nullptr}});
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    ASSERT_TRUE(sum_->wait(tower, *ticket).ok());
    if (tower == 0) {
      EXPECT_TRUE(sum_->start(tower, {{memory[tower]->as<float>(), 3, nullptr}}).ok());
    }
  });
  sum_.reset();
}

TEST_P(TowerSumTest, EndsThoughADeviceNeverAnswers) {
  GRADRAIL_NEEDS_SIMULATION();
  if (GetParam().reduce != Reduce::nccl) return;  // on the host it is the Compute's timeout that counts
  Simulation::configure("devices=3,hang=1@1");
  make_sum(std::chrono::milliseconds(300));
  std::vector<std::unique_ptr<Memory>> memory;
  for (size_t tower = 0; tower < kTowers; ++tower) memory.push_back(filled(tower, {1, 2, 3}));
  on_each_tower([&](size_t tower) {
    const float* sources[] = {memory[tower]->as<float>()};
    computes_[tower]->sum(sources, 3, 1.0f, memory[tower]->as<float>());
    const absl::StatusOr<CopyTicket> ticket = sum_->start(tower, {{memory[tower]->as<float>(), 3, nullptr}});
    const absl::Status status = ticket.ok() ? sum_->wait(tower, *ticket) : ticket.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  });
  sum_.reset();
  Simulation::release_hang();
}

TEST_P(TowerSumTest, ALostDeviceIsTheErrorOfAll) {
  GRADRAIL_NEEDS_SIMULATION();
  if (!GetParam().on_devices) return;
  Simulation::configure("devices=3,lose=1@1");
  make_sum(std::chrono::seconds(2));
  on_each_tower([&](size_t tower) {
    const std::unique_ptr<Memory> memory = filled(tower, {1, 2, 3});
    const float* sources[] = {memory->as<float>()};
    computes_[tower]->sum(sources, 3, 1.0f, memory->as<float>());
    const absl::StatusOr<CopyTicket> ticket = sum_->start(tower, {{memory->as<float>(), 3, nullptr}});
    const absl::Status status = ticket.ok() ? sum_->wait(tower, *ticket) : ticket.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  });
}

INSTANTIATE_TEST_SUITE_P(By, TowerSumTest,
                         ::testing::Values(Case{"nccl", Reduce::nccl, true},
                                           Case{"host_of_devices", Reduce::host, true},
                                           Case{"host_of_hosts", Reduce::host, false}),
                         [](const auto& setting) { return std::string(setting.param.name); });

TEST(TowerSumChoice, TheHostServesTowersThatShareAGpuAndNcclSaysWhyNot) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("devices=2");
  const std::unique_ptr<Compute> first = *open_device(0), second = *open_device(0), other = *open_device(1);
  EXPECT_EQ((*tower_sum({first.get(), second.get()}))->name(), "host");
  EXPECT_EQ((*tower_sum({first.get(), other.get()}))->name(), "NCCL 2.28.9");
  const auto refused = tower_sum({first.get(), second.get()}, {.reduce = Reduce::nccl});
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(message_of(refused.status())), HasSubstr("two towers share GPU 0"));
}

}  // namespace
}  // namespace gradrail::gpu
