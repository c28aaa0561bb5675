// Facts about a GPU and its driver that the design relies on. The simulated driver runs the same tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/device_compute.h"
#include "gpu/compute/recording.h"
#include "gpu/compute/stream_flags.h"
#include "gpu/direct/dma_buf.h"
#include "tests/gpu/fact.h"
#include "tests/gpu/simulation.h"

namespace gradrail::gpu {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class RealGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<const Driver*> driver = Driver::get();
    absl::StatusOr<std::unique_ptr<DeviceCompute>> opened =
        driver.ok() ? DeviceCompute::open(**driver, 0) : driver.status();
    if (!opened.ok() && Simulation::tolerates(opened.status())) GTEST_SKIP() << message_of(opened.status());
    ASSERT_TRUE(opened.ok()) << opened.status();
    compute_ = *std::move(opened);
  }

  const DeviceInfo& device() const { return compute_->context()->device(); }

  std::unique_ptr<Memory> allocate(size_t bytes) {
    absl::StatusOr<std::unique_ptr<Memory>> memory = compute_->allocate(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *std::move(memory) : nullptr;
  }

  /// Seconds until everything so far is done.
  double finish() {
    const TimePoint began = Clock::now();
    EXPECT_TRUE(compute_->finish().ok());
    return std::chrono::duration<double>(Clock::now() - began).count();
  }

  std::unique_ptr<DeviceCompute> compute_;
};

TEST_F(RealGpu, AnswersTheAttributesThatDecideAboutDirectTransfers) {
  for (const auto& [name, number] :
       {std::pair{"can_flush_remote_writes", 98},
        std::pair{"uses_host_page_tables", cuda::kPageableMemoryUsesHostPageTables},
        std::pair{"gpu_direct_rdma", cuda::kGpuDirectRdmaSupported},
        std::pair{"flush_writes_options", cuda::kGpuDirectRdmaFlushWritesOptions},
        std::pair{"writes_ordering", cuda::kGpuDirectRdmaWritesOrdering},
        std::pair{"stream_writes", cuda::kCanUse64BitStreamMemOps}, std::pair{"dma_buf", cuda::kDmaBufSupported}}) {
    int value = -1;
    EXPECT_EQ(compute_->context()->api().cuDeviceGetAttribute(&value, number, device().handle), cuda::kSuccess) << name;
    EXPECT_GE(value, 0) << name;
    report_fact(name, std::to_string(value));
  }
  report_fact("device", device().label());
  report_fact("driver", compute_->context()->driver().version_text());
}

TEST_F(RealGpu, ExportsAlignedUnalignedAndSmallMemoryAsDmaBuf) {
  if (!device().dma_buf) GTEST_SKIP() << device().label() << " does not support dma-buf";
  struct Case {
    const char* name;
    size_t allocated, first, bytes;
  };
  for (const Case& c : {Case{"aligned", 4 * kMiB, 0, 4 * kMiB}, Case{"unaligned", 4 * kMiB, 5000, 10000},
                        Case{"small", 2 * kMiB, 0, 4096}}) {
    const std::unique_ptr<Memory> memory = allocate(c.allocated);
    ASSERT_NE(memory, nullptr);
    const absl::StatusOr<DmaBuf> exported = export_dma_buf(*compute_, memory->data() + c.first, c.bytes);
    ASSERT_TRUE(exported.ok()) << c.name << ": " << exported.status();
    EXPECT_GE(exported->fd.get(), 0);
    EXPECT_LE(exported->offset + c.bytes, exported->bytes) << c.name;
    // The range must not reach memory in front of the allocation.
    EXPECT_LE(exported->offset, c.first) << c.name;
  }
}

TEST_F(RealGpu, FlushesWritesOfNicsOrNeedsNoFlush) {
  report_fact("writes_flush", device().writes_flush == WritesFlush::none      ? "none"
                              : device().writes_flush == WritesFlush::by_host ? "by_host"
                                                                              : "read_back");
  const absl::Status flushed = flush_nic_writes(*compute_);
  EXPECT_EQ(flushed.ok(), device().writes_flush != WritesFlush::read_back) << flushed;
}

TEST_F(RealGpu, PinsSharedMemoryAtTwoAddresses) {
  // A worker and a ps on one host pin the same pages, each at its own address.
  const FileDescriptor file(memfd_create("gradrail-real-test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 4 * kMiB), 0);
  void* addresses[2];
  for (void*& address : addresses) {
    address = mmap(nullptr, 4 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    ASSERT_NE(address, MAP_FAILED);
  }
  {
    const auto first = compute_->pin(addresses[0], 4 * kMiB), second = compute_->pin(addresses[1], 4 * kMiB);
    ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    auto* const written = static_cast<float*>(addresses[0]);
    std::iota(written, written + kMiB, 1.0f);
    const std::unique_ptr<Memory> memory = allocate(4 * kMiB);
    ASSERT_NE(memory, nullptr);
    // The kernel reads the second address, which the host has not written.
    const float* source = static_cast<float*>(addresses[1]);
    compute_->sum(absl::MakeConstSpan(&source, 1), kMiB, 2.0f, memory->as<float>());
    std::vector<float> back(kMiB);
    ASSERT_TRUE(compute_->wait(compute_->download(back.data(), memory->data(), 4 * kMiB)).ok());
    for (size_t i = 0; i < kMiB; i += 4099) ASSERT_EQ(back[i], 2.0f * static_cast<float>(i + 1)) << i;
  }
  for (void* address : addresses) munmap(address, 4 * kMiB);
}

TEST_F(RealGpu, CopiesToTheHostOverlapWithKernels) {
  const size_t bytes = (Simulation::is_here() ? 4 : 64) * kMiB, count = bytes / sizeof(float);
  const std::unique_ptr<Memory> a = allocate(bytes), b = allocate(bytes);
  ASSERT_TRUE(a != nullptr && b != nullptr);
  std::vector<float> host(count);
  const auto pinned = compute_->pin(host.data(), bytes);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  const float* source = a->as<float>();
  const auto kernels = [&] {
    for (int i = 0; i < 20; ++i) compute_->sum(absl::MakeConstSpan(&source, 1), count, 1.0f, b->as<float>());
  };
  compute_->upload(a->data(), host.data(), bytes);
  kernels();
  finish();  // the first launch loads the kernel
  double computing = 1e9, copying = 1e9, both = 1e9;
  for (int round = 0; round < 5; ++round) {
    kernels();
    computing = std::min(computing, finish());
    compute_->download(host.data(), a->data(), bytes);
    copying = std::min(copying, finish());
    // download() is behind the work so far and beside the work later.
    compute_->download(host.data(), a->data(), bytes);
    kernels();
    both = std::min(both, finish());
  }
  report_fact("copy_ms", fmt::format("{:.3f}", copying * 1e3));
  report_fact("kernels_ms", fmt::format("{:.3f}", computing * 1e3));
  report_fact("both_ms", fmt::format("{:.3f}", both * 1e3));
  // The streams of the simulated driver share the cores of this machine, so that their times prove nothing.
  if (!Simulation::is_here()) {
    EXPECT_LT(both, std::max(copying, computing) + 0.5 * std::min(copying, computing));
  }
}

TEST_F(RealGpu, OneCallStartsManyKernels) {
  constexpr int kKernels = 12, kRounds = 100;  // as many as a step of an MLP has
  const std::unique_ptr<Memory> memory = allocate(4096);
  ASSERT_NE(memory, nullptr);
  const float* source = memory->as<float>();
  const auto kernels = [&] {
    for (int i = 0; i < kKernels; ++i) compute_->sum(absl::MakeConstSpan(&source, 1), 16, 1.0f, memory->as<float>());
  };
  kernels();
  finish();  // the first launch loads the kernel
  const auto recording = Recording::make(*compute_, [&](Recording& recorded) {
    kernels();
    recorded.signal();
  });
  if (!device().stream_writes) GTEST_SKIP() << device().label() << " writes no numbers: " << recording.status();
  ASSERT_TRUE(recording.ok()) << recording.status();
  // Times of the host until all is enqueued, and until the last kernel has ended.
  double one_by_one = 1e9, one_by_one_ended = 1e9, replayed = 1e9, replayed_ended = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    TimePoint began = Clock::now();
    kernels();
    one_by_one = std::min(one_by_one, seconds_since(began));
    finish();
    one_by_one_ended = std::min(one_by_one_ended, seconds_since(began));
    began = Clock::now();
    (*recording)->replay();
    replayed = std::min(replayed, seconds_since(began));
    ASSERT_TRUE((*recording)->wait_for(0).ok());
    replayed_ended = std::min(replayed_ended, seconds_since(began));
    ASSERT_TRUE((*recording)->wait().ok());
  }
  report_fact("kernels_enqueued_us", fmt::format("{:.1f}", one_by_one * 1e6));
  report_fact("kernels_ended_us", fmt::format("{:.1f}", one_by_one_ended * 1e6));
  report_fact("recording_enqueued_us", fmt::format("{:.1f}", replayed * 1e6));
  report_fact("recording_ended_us", fmt::format("{:.1f}", replayed_ended * 1e6));
}

TEST_F(RealGpu, AStreamWritesANumberBehindItsWork) {
  if (!device().stream_writes) GTEST_SKIP() << device().label() << " writes no numbers";
  constexpr uint64_t kRounds = 100;
  const absl::StatusOr<std::unique_ptr<StreamFlags>> flags = StreamFlags::create(compute_->context());
  ASSERT_TRUE(flags.ok()) << flags.status();
  absl::StatusOr<Event> event = Event::create(compute_->context());
  ASSERT_TRUE(event.ok()) << event.status();
  double by_number = 1e9, by_event = 1e9;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    TimePoint began = Clock::now();
    ASSERT_EQ((*flags)->write(compute_->stream(), 0, round), cuda::kSuccess);
    while ((*flags)->read(0) != round) ASSERT_LT(seconds_since(began), 10.0);
    by_number = std::min(by_number, seconds_since(began));
    began = Clock::now();
    ASSERT_EQ(compute_->stream().record(*event), cuda::kSuccess);
    while (event->query() == cuda::kNotReady) ASSERT_LT(seconds_since(began), 10.0);
    by_event = std::min(by_event, seconds_since(began));
  }
  report_fact("mark_by_number_us", fmt::format("{:.1f}", by_number * 1e6));
  report_fact("mark_by_event_us", fmt::format("{:.1f}", by_event * 1e6));
}

}  // namespace
}  // namespace gradrail::gpu
