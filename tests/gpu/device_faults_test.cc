// Errors of a Compute when the device or its memory fails, and the release of all its resources.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <thread>
#include <tuple>

#include "base/clock.h"
#include "base/memory.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/device_compute.h"
#include "gpu/direct/dma_buf.h"
#include "gpu/direct/ipc.h"
#include "gpu/direct/staged_copies.h"
#include "gpu/driver/native_error.h"
#include "tests/gpu/simulation.h"

namespace gradrail::gpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string words(const absl::Status& status) { return std::string(message_of(status)); }

/// With the numbers that streams write, and with events.
class DeviceFaults : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { GRADRAIL_NEEDS_SIMULATION(); }

  void open(const char* configuration, Duration answer_timeout = std::chrono::seconds(20)) {
    Simulation::configure(fmt::format("{}{}", GetParam(), configuration).c_str());
    auto opened = DeviceCompute::open(**Driver::get(), 0, {.answer_timeout = answer_timeout});
    ASSERT_TRUE(opened.ok()) << opened.status();
    compute_ = *std::move(opened);
  }

  std::unique_ptr<Memory> zeros(size_t count) {
    auto memory = compute_->allocate(count * sizeof(float));
    EXPECT_TRUE(memory.ok()) << memory.status();
    const std::vector<float> values(count, 0.0f);
    compute_->upload((*memory)->data(), values.data(), count * sizeof(float));
    return *std::move(memory);
  }

  void add(const Memory& memory, float* target) {
    const float* sources[] = {target, memory.as<float>()};
    compute_->sum(sources, memory.bytes() / sizeof(float), 1.0f, target);
  }

  /// Ten values in pinned memory, which an add() and a download fill.
  struct Download {
    std::unique_ptr<Memory> from;
    std::vector<float> to;
    absl::StatusOr<std::unique_ptr<Pin>> pin;
    CopyTicket ticket;
  };
  Download download_behind_add() {
    Download started{zeros(10), std::vector<float>(10), nullptr, 0};
    started.pin = compute_->pin(started.to.data(), 40);
    add(*started.from, started.from->as<float>());
    started.ticket = compute_->download(started.to.data(), started.from->data(), 40);
    return started;
  }

  std::unique_ptr<DeviceCompute> compute_;
};

INSTANTIATE_TEST_SUITE_P(By, DeviceFaults, ::testing::Values("", "stream_writes=0,"),
                         [](const auto& form) { return std::string(*form.param == '\0' ? "numbers" : "events"); });

TEST_P(DeviceFaults, AMissingWaitShows) {
  open("hang=0@1");
  const std::unique_ptr<Memory> memory = zeros(1000);
  std::vector<float> back(1000, 7.0f);
  const auto pin = compute_->pin(back.data(), 4000);
  add(*memory, memory->as<float>());
  const CopyTicket ticket = compute_->download(back.data(), memory->data(), 4000);
  EXPECT_FALSE(compute_->is_done(ticket));
  EXPECT_EQ(back[0], 7.0f);
  std::thread release(Simulation::release_hang_when_reached);
  const absl::Status waited = compute_->wait(ticket);
  release.join();
  ASSERT_TRUE(waited.ok()) << waited;
  EXPECT_TRUE(compute_->is_done(ticket));
  EXPECT_EQ(back, std::vector<float>(1000, 0.0f));
}

TEST_P(DeviceFaults, ADownloadDoesNotWaitForLaterWork) {
  open("stall=0@1");
  const std::unique_ptr<Memory> memory = zeros(10), other = zeros(10);
  std::vector<float> back(20);
  const auto pin = compute_->pin(back.data(), 80);
  const CopyTicket ticket = compute_->download(back.data(), memory->data(), 40);
  add(*other, other->as<float>());
  const CopyTicket later_ticket = compute_->download(back.data() + 10, other->data(), 40);
  EXPECT_TRUE(compute_->wait(ticket).ok());
  EXPECT_FALSE(compute_->is_done(later_ticket));
  Simulation::release_hang_when_reached();
  EXPECT_TRUE(compute_->finish().ok());
}

/// A driver loads a kernel when it is looked up, and may wait for the device, which may wait for this thread.
TEST_P(DeviceFaults, TheFirstLaunchOfAKernelDoesNotWait) {
  open("hang=0@1");
  const Download started = download_behind_add();
  compute_->activation_backward(10, Activation::relu, started.from->as<float>(), started.from->as<float>());
  compute_->bias_activation(1, 10, started.from->as<float>(), Activation::relu, started.from->as<float>());
  EXPECT_FALSE(compute_->is_done(started.ticket));
  Simulation::release_hang_when_reached();
  EXPECT_TRUE(compute_->finish().ok());
}

TEST_P(DeviceFaults, OutOfMemorySaysHowMuchThereIs) {
  open("memory=64M");
  const auto first = compute_->allocate(size_t{40} << 20);
  ASSERT_TRUE(first.ok());
  const absl::Status status = compute_->allocate(size_t{30} << 20).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(words(status), AllOf(HasSubstr("GPU 0 (Simulated GPU, 0000:a0:00.0)"), HasSubstr("30.0 MiB"),
                                   HasSubstr("24.0 MiB free of 64.0 MiB"), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")));
  EXPECT_TRUE(compute_->allocate(size_t{20} << 20).ok());
  EXPECT_TRUE(compute_->finish().ok()) << "a refused allocation is no error of an operation";
}

TEST_P(DeviceFaults, AContextTakesMemoryOnceForAllItsUsers) {
  open("memory=64M,context=40M");
  auto other = DeviceCompute::open(**Driver::get(), 0);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(words(compute_->allocate(size_t{30} << 20).status()), HasSubstr("24.0 MiB free of 64.0 MiB"));
  other->reset();
  compute_.reset();
  Simulation::configure("memory=64M,context=65M");
  const absl::Status refused = DeviceCompute::open(**Driver::get(), 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(words(refused), AllOf(HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"), HasSubstr("nvidia-smi")));
}

/// A driver may not know an attribute.
TEST_P(DeviceFaults, ADeviceOfUnknownSizeComputes) {
  open("attribute=16@0");  // multiprocessors
  const std::unique_ptr<Memory> memory = zeros(1000);
  add(*memory, memory->as<float>());
  EXPECT_TRUE(compute_->finish().ok());
}

TEST_P(DeviceFaults, MemoryThatAnOperationLacksIsItsError) {
  open("memory=1M");
  const auto all = compute_->allocate((size_t{1} << 20) - 100);
  const float* x = (*all)->as<float>();
  compute_->column_sums(1000, 1, x, (*all)->as<float>() + 2000);  // wants 4,000 bytes of ones
  EXPECT_EQ(compute_->finish().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(compute_->finish().ok());
}

TEST_P(DeviceFaults, WhatWasDoneOnceTakesNoMoreMemory) {
  open("memory=33M");  // 32 MiB are the workspace of cuBLAS
  const std::unique_ptr<Memory> x = zeros(1000), sums = zeros(1);
  compute_->column_sums(1000, 1, x->as<float>(), sums->as<float>());
  ASSERT_TRUE(compute_->finish().ok());
  const int before = Simulation::objects().allocations;
  compute_->column_sums(1000, 1, x->as<float>(), sums->as<float>());
  compute_->column_sums(10, 100, x->as<float>(), x->as<float>());
  EXPECT_TRUE(compute_->finish().ok());
  EXPECT_EQ(Simulation::objects().allocations, before);
}

/// A driver frees memory only when the device and its peers have finished. Their work may wait for the thread that
/// frees.
TEST_P(DeviceFaults, OutgrownMemoryIsKeptUntilTheEnd) {
  open("");
  const std::unique_ptr<Memory> x = zeros(1000), sums = zeros(1000);
  const int before = Simulation::objects().allocations;
  for (const size_t rows : {1u, 10u, 1000u, 5u}) compute_->column_sums(rows, 1, x->as<float>(), sums->as<float>());
  EXPECT_TRUE(compute_->finish().ok());
  EXPECT_EQ(Simulation::objects().allocations, before + 4);  // one is the workspace of cuBLAS
  compute_.reset();
  EXPECT_EQ(Simulation::objects().allocations, before);
}

TEST_P(DeviceFaults, TheFirstErrorIsReportedOnceAndNothingIsDoneBeforeThat) {
  open("");
  const std::unique_ptr<Memory> ones = zeros(10);
  const std::vector<float> values(10, 1.0f);
  compute_->upload(ones->data(), values.data(), 40);
  const std::unique_ptr<Memory> target = zeros(10);
  auto gone = compute_->allocate(40);
  std::byte* const dangling = (*gone)->data();
  gone->reset();
  compute_->upload(dangling, values.data(), 40);
  add(*ones, target->as<float>());  // not done
  std::vector<float> back(10, 3.0f);
  const CopyTicket ticket = compute_->download(back.data(), target->data(), 40);  // not done either
  EXPECT_TRUE(compute_->is_done(ticket));
  const absl::Status status = compute_->wait(ticket);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(words(status), AllOf(HasSubstr("copying 40 bytes to it"), HasSubstr("CUDA_ERROR_INVALID_VALUE")));
  EXPECT_EQ(back[0], 3.0f);
  add(*ones, target->as<float>());
  ASSERT_TRUE(compute_->wait(compute_->download(back.data(), target->data(), 40)).ok());
  EXPECT_EQ(back, values);
}

TEST_P(DeviceFaults, ALostDeviceIsNamedAgainAndAgain) {
  open("lose=0@3");
  const std::unique_ptr<Memory> memory = zeros(10);
  for (int i = 0; i < 5; ++i) add(*memory, memory->as<float>());
  std::vector<float> back(10);
  for (int call = 0; call < 3; ++call) {
    const absl::Status status = compute_->wait(compute_->download(back.data(), memory->data(), 40));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(words(status), AllOf(HasSubstr("GPU 0 (Simulated GPU, 0000:a0:00.0)"), HasSubstr("CUDA_ERROR_UNKNOWN"),
                                     HasSubstr("nvidia-smi")));
  }
  EXPECT_EQ(compute_->finish().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(compute_->allocate(4).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(compute_->pin(back.data(), 40).status().code(), absl::StatusCode::kUnavailable);
}

/// CUDA reports an error of earlier work through whichever call comes next.
TEST_P(DeviceFaults, ALateErrorIsThatOfEachCall) {
  open("fault=0@1");
  const std::unique_ptr<Memory> memory = zeros(1024);
  ASSERT_TRUE(compute_->finish().ok());
  auto other = DeviceCompute::open(**Driver::get(), 0);
  ASSERT_TRUE(other.ok()) << other.status();
  const cuda::Functions& api = compute_->context()->api();
  std::vector<float> pinned(10);
  cuda::DevicePointer allocation = 0;
  cuda::Stream stream = nullptr;
  cuda::Event event = nullptr;
  cuda::Module module = nullptr;
  cuda::Graph graph = nullptr, late_graph = nullptr;
  cuda::GraphExec executable = nullptr;
  for (const cuda::Result made :
       {api.cuMemAlloc_v2(&allocation, 40), api.cuMemHostRegister_v2(pinned.data(), 40, 0),
        api.cuStreamCreate(&stream, cuda::kStreamNonBlocking), api.cuEventCreate(&event, cuda::kEventDisableTiming),
        api.cuModuleLoadData(&module, "an image"), api.cuStreamBeginCapture_v2(stream, cuda::kStreamCaptureRelaxed),
        api.cuStreamEndCapture(stream, &graph), api.cuGraphInstantiateWithFlags(&executable, graph, 0),
        api.cuStreamBeginCapture_v2(stream, cuda::kStreamCaptureRelaxed)}) {
    ASSERT_EQ(made, cuda::kSuccess);
  }
  const float* sources[] = {memory->as<float>()};
  (*other)->sum(sources, 1024, 1.0f, memory->as<float>());
  ASSERT_FALSE((*other)->finish().ok());
  std::vector<float> back(10);
  for (const absl::Status& late : {compute_->allocate(4).status(), compute_->pin(back.data(), 40).status(),
                                   export_memory(*compute_, memory->data(), 4096).status(),
                                   export_dma_buf(*compute_, memory->data(), 4096).status(),
                                   prepare_for_peers(*compute_, memory->data()), compute_->finish()}) {
    EXPECT_THAT(words(late), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  }
  // Calls that end an object do so all the same. There is no memory of another process here.
  const SimulatedObjects before = Simulation::objects();
  for (const cuda::Result late :
       {api.cuStreamEndCapture(stream, &late_graph), api.cuGraphExecDestroy(executable), api.cuGraphDestroy(graph),
        api.cuModuleUnload(module), api.cuEventDestroy_v2(event), api.cuStreamDestroy_v2(stream),
        api.cuMemHostUnregister(pinned.data()), api.cuMemFree_v2(allocation), api.cuIpcCloseMemHandle(0)}) {
    EXPECT_EQ(late, cuda::kIllegalAddress);
  }
  const SimulatedObjects after = Simulation::objects();
  EXPECT_EQ(late_graph, nullptr);
  EXPECT_EQ(std::tuple(before.allocations - after.allocations, before.pins - after.pins, before.streams - after.streams,
                       before.events - after.events, before.modules - after.modules, before.graphs - after.graphs),
            std::tuple(1, 1, 1, 1, 1, 2));
}

/// cuBLAS reports that an execution failed, and no reason.
TEST_P(DeviceFaults, AProductOnALostDeviceSaysThatTheDeviceWasLost) {
  for (const bool had_product : {false, true}) {
    open("lose=0@2");
    const std::unique_ptr<Memory> memory = zeros(10);
    const auto multiply = [&] {
      compute_->product({.m = 1, .k = 1, .n = 1}, memory->as<float>(), memory->as<float>(), memory->as<float>(), false);
    };
    if (had_product) multiply();
    ASSERT_TRUE(compute_->finish().ok());
    // Another user of the device sees the loss first.
    auto other = DeviceCompute::open(**Driver::get(), 0);
    ASSERT_TRUE(other.ok()) << other.status();
    const float* sources[] = {memory->as<float>()};
    for (int i = 0; i < 2; ++i) (*other)->sum(sources, 10, 1.0f, memory->as<float>());
    ASSERT_EQ((*other)->finish().code(), absl::StatusCode::kUnavailable);
    multiply();
    for (int call = 0; call < 2; ++call) {
      const absl::Status status = compute_->finish();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(words(status), AllOf(HasSubstr("GPU 0 (Simulated GPU, 0000:a0:00.0): a product of cuBLAS"),
                                       HasSubstr("CUDA_ERROR_UNKNOWN"), HasSubstr("the GPU was lost")));
    }
    compute_.reset();
  }
}

TEST_P(DeviceFaults, AKernelsBadAccessIsAnErrorThatLasts) {
  open("");
  const std::unique_ptr<Memory> memory = zeros(10);
  const float* sources[] = {memory->as<float>()};
  compute_->sum(sources, 100000, 1.0f, memory->as<float>());  // reads and writes far behind the end
  for (int call = 0; call < 2; ++call) {
    const absl::Status status = compute_->finish();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(words(status), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  }
}

TEST_P(DeviceFaults, ADeviceThatHangsIsLostAfterTheTimeoutAndDoesNotBlock) {
  {
    open("hang=0@2", std::chrono::milliseconds(200));
    const std::unique_ptr<Memory> memory = zeros(10);
    for (int i = 0; i < 5; ++i) add(*memory, memory->as<float>());
    const absl::Status status = compute_->finish();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(words(status), AllOf(HasSubstr("GPU 0"), HasSubstr("no answer for 0.2 s")));
    compute_.reset();
  }
  Simulation::release_hang();
}

/// Each user of a device has its own operations under way. One that has waited for the timeout has waited for all.
TEST_P(DeviceFaults, AHangIsWaitedForOnceByAllUsersOfTheDevice) {
  open("hang=0@1", std::chrono::milliseconds(200));
  const std::unique_ptr<StagedCopies> copies = *staged_copies(*compute_);  // its own timeout is 60 s
  const std::unique_ptr<Memory> memory = zeros(30);
  add(*memory, memory->as<float>());
  copies->pack(GradientFormat::bf16, 10, memory->as<float>(), memory->as<float>() + 10, memory->as<float>() + 20);
  const TimePoint start = Clock::now();
  EXPECT_EQ(compute_->finish().code(), absl::StatusCode::kUnavailable);
  const absl::Status lost = copies->finish();
  EXPECT_TRUE(is_device_loss(lost)) << lost;
  EXPECT_LT(seconds_since(start), 60.0);
  compute_.reset();
  Simulation::release_hang();
}

/// Copies to memory that is not pinned wait in the driver without a deadline.
TEST_P(DeviceFaults, AnUnpinnedCopyEndsWithADeviceThatHangs) {
  for (const bool up : {false, true}) {
    open("hang=0@1", std::chrono::milliseconds(200));
    const std::unique_ptr<Memory> memory = zeros(10);
    std::vector<float> values(10);
    add(*memory, memory->as<float>());
    if (up) {
      compute_->upload(memory->data(), values.data(), 40);
    } else {
      compute_->download(values.data(), memory->data(), 40);
    }
    EXPECT_EQ(compute_->finish().code(), absl::StatusCode::kUnavailable);
    compute_.reset();
    Simulation::release_hang();
  }
}

TEST_P(DeviceFaults, MemoryThatMustNotBeWrittenIsNotPinned) {
  open("");
  void* const page = mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  EXPECT_EQ(compute_->pin(page, 4096).status().code(), absl::StatusCode::kInternal);
  ASSERT_EQ(mprotect(page, 4096, PROT_READ | PROT_WRITE), 0);
  EXPECT_FALSE(compute_->pin(page, 8192).ok()) << "half of it";
  EXPECT_TRUE(compute_->pin(page, 4096).ok());
  munmap(page, 8192);
}

TEST_P(DeviceFaults, NothingIsPinnedWhereKernelsCannotUseItsAddresses) {
  open("pinned_addresses=0");
  std::vector<float> values(10);
  EXPECT_EQ(compute_->pin(values.data(), 40).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(DeviceFaults, WithoutPinnedMemoryCopiesAreTheSame) {
  open("pin=2");
  std::vector<float> values(10, 1.0f), back(10);
  const absl::Status refused = compute_->pin(back.data(), 40).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(words(refused), AllOf(HasSubstr("pinning 40 bytes of host memory"), HasSubstr("of this host")));
  const auto memory = compute_->allocate(40);
  compute_->upload((*memory)->data(), values.data(), 40);
  ASSERT_TRUE(compute_->wait(compute_->download(back.data(), (*memory)->data(), 40)).ok());
  EXPECT_EQ(back, values);
}

/// The driver pins whole pages. What lies beside pinned bytes is copied as if its page were not pinned.
TEST_P(DeviceFaults, APageIsPinnedOnce) {
  open("");
  const absl::StatusOr<SharedMemory> pages = SharedMemory::create("gradrail-test", 4 * 4096);
  std::byte* const data = pages->data();
  const auto first = compute_->pin(data, 4096 + 100);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(compute_->pin(data + 4096 + 1000, 4096).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(compute_->pin(data + 8192, 4096).ok());
  const std::unique_ptr<Memory> memory = zeros(10);
  compute_->upload(memory->data(), data + 4096 + 1000, 40);
  EXPECT_TRUE(compute_->finish().ok());
}

TEST_P(DeviceFaults, AnErrorBehindAllCallsEndsTheWaitAtOnce) {
  open("fault=0@1,delay=20000", std::chrono::hours(1));
  const Download started = download_behind_add();
  EXPECT_THAT(words(compute_->wait(started.ticket)), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

/// A progress thread that only asks must hear of it as well.
TEST_P(DeviceFaults, APollNoticesAHangToo) {
  open("hang=0@1", std::chrono::milliseconds(200));
  const Download started = download_behind_add();
  while (!compute_->is_done(started.ticket)) std::this_thread::yield();
  EXPECT_EQ(compute_->wait(started.ticket).code(), absl::StatusCode::kUnavailable);
  compute_.reset();
  Simulation::release_hang();
}

TEST_P(DeviceFaults, NothingIsLeftBehind) {
  Simulation::configure("devices=2");
  const SimulatedObjects before = Simulation::objects();
  open("devices=2");
  std::vector<float> back(100);
  {
    const auto pin = compute_->pin(back.data(), 400);
    const std::unique_ptr<Memory> memory = zeros(100), product = zeros(10000);
    for (int i = 0; i < 50; ++i) compute_->download(back.data(), memory->data(), 400);
    compute_->product({.m = 100, .k = 1, .n = 100}, memory->as<float>(), memory->as<float>(), product->as<float>(),
                      false);
    compute_->column_sums(10, 10, memory->as<float>(), product->as<float>());
    EXPECT_TRUE(compute_->crc32c(memory->data(), 400).ok());
    EXPECT_TRUE(compute_->finish().ok());
  }
  compute_.reset();
  const SimulatedObjects after = Simulation::objects();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.pins, before.pins);
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.modules, before.modules);
  EXPECT_EQ(after.contexts, before.contexts);
}

}  // namespace
}  // namespace gradrail::gpu
