#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "gpu/direct/dma_buf.h"
#include "gpu/direct/peer_memory.h"
#include "tests/gpu/simulation.h"

namespace gradrail::gpu {
namespace {

using ::testing::HasSubstr;

size_t open_descriptors() {
  const std::filesystem::directory_iterator folder("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(folder), end(folder)));
}

std::unique_ptr<Compute> open_or_null() {
  absl::StatusOr<std::unique_ptr<Compute>> opened = open_device(0);
  return opened.ok() ? *std::move(opened) : nullptr;
}

TEST(DmaBuf, NamesTheBytesOfTheMemoryAndIsClosedByItsOwner) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("");
  const std::unique_ptr<Compute> compute = open_or_null();
  constexpr size_t kBytes = 3 * 4096;
  const auto memory = compute->allocate(kBytes);
  const std::string words = "these bytes lie on the device";
  compute->upload((*memory)->data() + 5000, words.data(), words.size());
  ASSERT_TRUE(compute->finish().ok());
  const size_t before = open_descriptors();
  {
    const absl::StatusOr<DmaBuf> exported = export_dma_buf(*compute, (*memory)->data(), kBytes);
    ASSERT_TRUE(exported.ok()) << exported.status();
    EXPECT_EQ(open_descriptors(), before + 1);
    std::string back(words.size(), '?');
    ASSERT_GT(pread(exported->fd.get(), back.data(), back.size(), static_cast<off_t>(exported->offset + 5000)), 0);
    EXPECT_EQ(back, words);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(DmaBuf, CoversWholePages) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("");
  const std::unique_ptr<Compute> compute = open_or_null();
  const auto memory = compute->allocate(3 * 4096);
  const absl::StatusOr<DmaBuf> exported = export_dma_buf(*compute, (*memory)->data() + 5000, 4000);
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ(exported->offset, 5000u - 4096u);
  EXPECT_EQ(exported->bytes, 2 * 4096u);
}

/// Who exports memory allocates whole pages (own_allocation()).
TEST(DmaBuf, APageThatTheAllocationDoesNotFillIsRefused) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("");
  const std::unique_ptr<Compute> compute = open_or_null();
  const auto memory = compute->allocate(2 * 4096 - 100);
  EXPECT_TRUE(export_dma_buf(*compute, (*memory)->data(), 4096).ok());
  EXPECT_EQ(export_dma_buf(*compute, (*memory)->data(), 4097).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DmaBuf, ADeviceWithoutSaysWhatItTakes) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("dma_buf=0");
  const std::unique_ptr<Compute> compute = open_or_null();
  const auto memory = compute->allocate(4096);
  const absl::Status status = export_dma_buf(*compute, (*memory)->data(), 4096).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(message_of(status)), HasSubstr("open kernel module"));
}

TEST(DmaBuf, ADeviceThatNicsCannotReachIsNoSource) {
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("attribute=116@0");  // GPUDirect RDMA
  const absl::Status refused = source_for_nics(*open_or_null(), NicGpuTransfer::dma_buf).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(message_of(refused)), HasSubstr("does not support GPUDirect RDMA"));
}

TEST(DmaBuf, MemoryOfTheHostOrOfNoAllocationIsRefused) {
  const std::unique_ptr<Compute> host = host_compute();
  const auto memory = host->allocate(4096);
  EXPECT_EQ(export_dma_buf(*host, (*memory)->data(), 4096).status().code(), absl::StatusCode::kFailedPrecondition);
  GRADRAIL_NEEDS_SIMULATION();
  Simulation::configure("");
  const std::unique_ptr<Compute> compute = open_or_null();
  EXPECT_EQ(export_dma_buf(*compute, (*memory)->data(), 4096).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(prepare_for_peers(*compute, (*memory)->data()).ok());
  const auto own = compute->allocate(1 << 20);
  EXPECT_TRUE(prepare_for_peers(*compute, (*own)->data()).ok());
  EXPECT_EQ(export_dma_buf(*compute, (*own)->data(), size_t{1} << 30).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(WritesOfNics, AreFlushedWhereADeviceDoesNotOrderThem) {
  GRADRAIL_NEEDS_SIMULATION();
  for (const char* words : {"", "ordering=0"}) {
    Simulation::configure(words);
    const std::unique_ptr<Compute> compute = open_or_null();
    EXPECT_EQ(needs_flush(*compute), *words != '\0');
    EXPECT_TRUE(flush_nic_writes(*compute).ok());
    EXPECT_TRUE(source_for_nics(*compute, NicGpuTransfer::dma_buf).ok());
  }
  Simulation::configure("ordering=0,flush=0");
  const std::unique_ptr<Compute> compute = open_or_null();
  EXPECT_EQ(flush_nic_writes(*compute).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(message_of(source_for_nics(*compute, NicGpuTransfer::dma_buf).status())),
              HasSubstr("does not order what network devices write"));
}

class PeerMemory : public ::testing::Test {
 protected:
  PeerMemory() : root_(std::filesystem::path(::testing::TempDir()) / ("sysfs" + std::to_string(getpid()))) {}
  ~PeerMemory() override { std::filesystem::remove_all(root_); }
  void add(const std::string& module, const std::string& state) {
    std::filesystem::create_directories(root_ / "module" / module);
    std::ofstream(root_ / "module" / module / "initstate") << state << "\n";
  }
  const std::filesystem::path root_;
};

TEST_F(PeerMemory, WithoutAModuleSaysWhichToLoad) {
  const auto module = peer_memory_module(root_);
  EXPECT_EQ(module.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(message_of(module.status())), HasSubstr("modprobe nvidia_peermem"));
}

TEST_F(PeerMemory, FindsEachOfTheModules) {
  add("nv_peer_mem", "live");
  EXPECT_EQ(*peer_memory_module(root_), "nv_peer_mem");
  add("nvidia_peermem", "live");
  EXPECT_EQ(*peer_memory_module(root_), "nvidia_peermem");
}

TEST_F(PeerMemory, AModuleThatIsNotLiveDoesNotCount) {
  add("nvidia_peermem", "coming");
  EXPECT_THAT(std::string(message_of(peer_memory_module(root_).status())), HasSubstr("not live"));
}

}  // namespace
}  // namespace gradrail::gpu
