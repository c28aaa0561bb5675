// Operations that one call enqueues, their points, and their errors.
#include "gpu/compute/recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "tests/gpu/simulation.h"

namespace gradrail::gpu {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr size_t kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(float);

/// total += step, copied to `back`; then total += step once more.
class Recordings : public ::testing::Test {
 protected:
  void SetUp() override { open("delay=300"); }

  void open(const char* configuration, Duration answer_timeout = std::chrono::seconds(20)) {
    if (IsSkipped()) return;
    back_pin_.reset();
    step_.reset();
    total_.reset();
    compute_.reset();
    if (Simulation::is_here()) Simulation::configure(configuration);
    absl::StatusOr<const Driver*> driver = Driver::get();
    const absl::Status here = driver.ok() ? open_device(0).status() : driver.status();
    if (!here.ok() && Simulation::tolerates(here)) GTEST_SKIP() << message_of(here);
    ASSERT_TRUE(here.ok()) << here;
    compute_ = *DeviceCompute::open(**driver, 0, {.answer_timeout = answer_timeout});
    total_ = *compute_->allocate(kBytes);
    step_ = *compute_->allocate(kBytes);
    set(*total_, 0.0f);
    set(*step_, 1.0f);
    back_pin_ = *compute_->pin(back_memory_.data(), kBytes);
    std::fill_n(back(), kCount, -1.0f);
    add();
    ASSERT_TRUE(compute_->finish().ok());
    set(*total_, 0.0f);
  }

  void set(const Memory& memory, float value) {
    const std::vector<float> values(kCount, value);
    compute_->upload(memory.data(), values.data(), kBytes);
    ASSERT_TRUE(compute_->finish().ok());
  }
  void add() {
    const float* sources[] = {total_->as<float>(), step_->as<float>()};
    compute_->sum(sources, kCount, 1.0f, total_->as<float>());
  }
  absl::StatusOr<std::unique_ptr<Recording>> record() {
    return Recording::make(*compute_, [this](Recording& recording) {
      add();
      recording.copy_to_host(back(), total_->data(), kBytes);
      recording.signal();
      add();
      recording.signal();
    });
  }
  float* back() { return reinterpret_cast<float*>(back_memory_.data()); }
  std::vector<float> total() {
    std::vector<float> values(kCount);
    EXPECT_TRUE(compute_->wait(compute_->download(values.data(), total_->data(), kBytes)).ok());
    return values;
  }

  SharedMemory back_memory_ = *SharedMemory::create("gradrail-test", kBytes);
  std::unique_ptr<DeviceCompute> compute_;
  std::unique_ptr<Memory> total_, step_;
  std::unique_ptr<Pin> back_pin_;
};

TEST_F(Recordings, RunsWhatWasRecordedEachTimeAndNotBefore) {
  const auto recording = record();
  ASSERT_TRUE(recording.ok()) << recording.status();
  EXPECT_THAT(total(), Each(0.0f));
  for (int round = 0; round < 5; ++round) {
    const auto before = static_cast<float>(2 * round);
    (*recording)->replay();
    ASSERT_TRUE((*recording)->wait_for(0).ok());
    EXPECT_THAT(std::vector<float>(back(), back() + kCount), Each(before + 1.0f));
    ASSERT_TRUE((*recording)->wait().ok());
    EXPECT_THAT(total(), Each(before + 2.0f));
  }
}

TEST_F(Recordings, IsInOrderWithOperationsBeforeAndAfter) {
  const auto recording = record();
  ASSERT_TRUE(recording.ok()) << recording.status();
  set(*step_, 10.0f);
  add();
  (*recording)->replay();
  add();
  EXPECT_THAT(total(), Each(40.0f));
  EXPECT_TRUE((*recording)->has_reached(1));
}

TEST_F(Recordings, APointIsReachedBeforeTheOperationsBehindIt) {
  GRADRAIL_NEEDS_SIMULATION();
  open("");
  const auto recording = record();
  ASSERT_TRUE(recording.ok()) << recording.status();
  for (int round = 0; round < 2; ++round) {  // points are as new in the second round
    Simulation::configure("hang=0@1");       // the first add()
    (*recording)->replay();
    EXPECT_FALSE((*recording)->has_reached(0));
    Simulation::release_hang_when_reached();
    ASSERT_TRUE((*recording)->wait().ok());
    EXPECT_TRUE((*recording)->has_reached(0));
    Simulation::configure("hang=0@2");  // the add() between the points
    (*recording)->replay();
    ASSERT_TRUE((*recording)->wait_for(0).ok());
    EXPECT_FALSE((*recording)->has_reached(1));
    Simulation::release_hang_when_reached();
    ASSERT_TRUE((*recording)->wait().ok());
    EXPECT_TRUE((*recording)->has_reached(1));
  }
}

TEST_F(Recordings, OneCallStartsAllOperations) {
  GRADRAIL_NEEDS_SIMULATION();
  const auto recording = record();
  ASSERT_TRUE(recording.ok()) << recording.status();
  const int before = Simulation::objects().started;
  (*recording)->replay();
  ASSERT_TRUE((*recording)->wait().ok());
  EXPECT_EQ(Simulation::objects().started, before + 1);
}

TEST_F(Recordings, AnOperationThatCannotBeRecordedIsTheError) {
  GRADRAIL_NEEDS_SIMULATION();
  std::vector<float> pageable(kCount);
  const auto refused = Recording::make(*compute_, [&](Recording& recording) {
    recording.copy_to_host(pageable.data(), total_->data(), kBytes);
    add();
  });
  EXPECT_THAT(refused.status().ToString(), HasSubstr("copying 4000 bytes from it"));
  // The device works as before, and the failed recording left nothing.
  add();
  EXPECT_THAT(total(), Each(1.0f));
  EXPECT_EQ(Simulation::objects().graphs, 0);
  EXPECT_TRUE(record().ok());
}

TEST_F(Recordings, NeedsADeviceThatWritesNumbers) {
  EXPECT_TRUE(absl::IsFailedPrecondition(Recording::make(*host_compute(), [](Recording&) {}).status()));
  GRADRAIL_NEEDS_SIMULATION();
  open("stream_writes=0");
  const absl::Status refused = record().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.ToString(), HasSubstr("no writes of a stream into host memory"));
}

TEST_F(Recordings, ALostDeviceIsTheErrorOfEachPoint) {
  GRADRAIL_NEEDS_SIMULATION();
  open("lose=0@3");  // 1: the first add(); 2 and 3: those of the replay
  const auto recording = record();
  ASSERT_TRUE(recording.ok()) << recording.status();
  (*recording)->replay();
  EXPECT_TRUE((*recording)->wait_for(0).ok());
  EXPECT_TRUE(absl::IsUnavailable((*recording)->wait_for(1)));
  EXPECT_TRUE((*recording)->has_reached(1));
  (*recording)->replay();
  EXPECT_TRUE(absl::IsUnavailable((*recording)->wait_for(0)));
}

TEST_F(Recordings, ADeviceThatDoesNotAnswerIsLostAfterItsTime) {
  GRADRAIL_NEEDS_SIMULATION();
  open("hang=0@2", std::chrono::milliseconds(300));
  {
    const auto recording = record();
    ASSERT_TRUE(recording.ok()) << recording.status();
    (*recording)->replay();
    const absl::Status lost = (*recording)->wait_for(0);
    EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
    EXPECT_THAT(lost.ToString(), HasSubstr("no answer for 0.3 s"));
  }
  compute_.reset();
  Simulation::release_hang();
  // Nothing is unpinned on a device that is lost, and the address must not be used again.
  static const SharedMemory kept = std::move(back_memory_);
}

/// A recording has addresses. Their owners may have freed or unpinned them when it is replayed.
TEST_F(Recordings, MemoryThatIsNotThereAnyMoreIsTheErrorOfTheReplay) {
  GRADRAIL_NEEDS_SIMULATION();
  for (const bool frees : {false, true}) {
    open("");
    const auto recording = record();
    ASSERT_TRUE(recording.ok()) << recording.status();
    (*recording)->replay();
    ASSERT_TRUE((*recording)->wait().ok());
    if (frees) {
      step_.reset();
    } else {
      back_pin_.reset();
      back_pin_ = *compute_->pin(back_memory_.data(), kBytes);
    }
    (*recording)->replay();
    EXPECT_THAT((*recording)->wait().ToString(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS")) << frees;
  }
  for (const bool of_a_vector : {false, true}) {
    open("");
    absl::StatusOr<std::unique_ptr<Memory>> factor = compute_->allocate(kBytes);
    ASSERT_TRUE(factor.ok()) << factor.status();
    set(**factor, 1.0f);
    const auto multiply = [&] {
      const float* const x = (*factor)->as<float>();
      if (of_a_vector)
        compute_->column_sums(10, 10, x, total_->as<float>());
      else
        compute_->product({.m = 10, .k = 10, .n = 10}, x, x, total_->as<float>(), false);
    };
    multiply();  // takes the memory of cuBLAS and the vector of ones
    const auto recording = Recording::make(*compute_, [&](Recording&) { multiply(); });
    ASSERT_TRUE(recording.ok()) << recording.status();
    factor->reset();
    (*recording)->replay();
    EXPECT_THAT((*recording)->wait().ToString(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS")) << of_a_vector;
  }
}

TEST_F(Recordings, LeavesNothingBehind) {
  GRADRAIL_NEEDS_SIMULATION();
  const SimulatedObjects before = Simulation::objects();
  {
    const auto recording = record();
    ASSERT_TRUE(recording.ok()) << recording.status();
    (*recording)->replay();
    EXPECT_EQ(Simulation::objects().graphs, before.graphs + 1) << "the graph itself ends when it is prepared";
    EXPECT_EQ(Simulation::objects().pins, before.pins + 1);
  }
  EXPECT_EQ(Simulation::objects().graphs, before.graphs);
  EXPECT_EQ(Simulation::objects().pins, before.pins);
}

}  // namespace
}  // namespace gradrail::gpu
