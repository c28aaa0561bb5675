#include "topology/pin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>

#include "base/memory.h"

namespace gradrail::topology {
namespace {

using ::testing::HasSubstr;

Pinner pinner() {
  absl::StatusOr<Pinner> opened = Pinner::open();
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

/// A binding must not outlive the test that made it.
void in_thread(const std::function<void()>& body) { std::thread(body).join(); }

/// The kernel's own answer about the calling thread.
std::string cpus_in_proc() {
  std::ifstream status("/proc/thread-self/status");
  const std::string key = "Cpus_allowed_list:\t";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return line.substr(key.size());
  }
  return "no such line";
}

CpuSet cpus_of_process() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  CpuSet cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.insert(cpu);
  }
  return cpus;
}

/// The policy that the kernel keeps for the mapping that begins at `data`: "default", "prefer=static:0", …
std::string policy_in_proc(const void* data) {
  std::ifstream maps("/proc/self/numa_maps");
  for (std::string line; std::getline(maps, line);) {
    char* rest = nullptr;
    if (std::strtoull(line.c_str(), &rest, 16) != reinterpret_cast<uintptr_t>(data)) continue;
    const std::string_view policy = rest + 1;
    return std::string(policy.substr(0, policy.find(' ')));
  }
  return "no such line";
}

/// The first line of a file in /sys, or nothing.
std::string setting(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

TEST(Pin, AThreadRunsOnTheOneCpuItWasBoundTo) {
  const Pinner pin = pinner();
  for (const int cpu : cpus_of_process().to_vector()) {
    in_thread([&] {
      const absl::Status bound = pin.bind_thread({cpu});
      ASSERT_TRUE(bound.ok()) << bound;
      EXPECT_EQ(cpus_in_proc(), std::to_string(cpu));
      EXPECT_EQ(*pin.thread_cpus(), CpuSet{cpu});
      EXPECT_EQ(sched_getcpu(), cpu);
    });
  }
}

TEST(Pin, OneThreadsBindingIsNoneOfTheOthers) {
  const Pinner pin = pinner();
  const CpuSet all = cpus_of_process();
  in_thread([&] { EXPECT_TRUE(pin.bind_thread({all.first()}).ok()); });
  EXPECT_EQ(*pin.thread_cpus(), all);
}

TEST(Pin, ThreadsCreatedLaterInheritAndMayLeaveAgain) {
  const Pinner pin = pinner();
  const CpuSet all = cpus_of_process();
  in_thread([&] {
    ASSERT_TRUE(pin.bind_thread({all.first()}).ok());
    in_thread([&] {
      EXPECT_EQ(cpus_in_proc(), std::to_string(all.first()));
      ASSERT_TRUE(pin.bind_thread(all).ok());
      EXPECT_EQ(cpus_in_proc(), all.to_string());
    });
    EXPECT_EQ(cpus_in_proc(), std::to_string(all.first()));
  });
}

TEST(Pin, ACpuThatIsNotThereIsRefusedAndTheThreadStaysWhereItWas) {
  const Pinner pin = pinner();
  const CpuSet all = cpus_of_process();
  for (const CpuSet& wrong : {CpuSet{CpuSet::kMaxCpu}, all | CpuSet{CpuSet::kMaxCpu}, CpuSet{}}) {
    const absl::Status refused = pin.bind_thread(wrong);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_EQ(*pin.thread_cpus(), all);
  }
  const std::string said(pin.bind_thread({CpuSet::kMaxCpu}).message());
  EXPECT_THAT(said, HasSubstr("bind a thread to cpus 65535"));
  EXPECT_THAT(said, HasSubstr("--no-pin"));
}

TEST(Pin, UntouchedMemoryLiesOnTheNodeItWasBoundTo) {
  const Pinner pin = pinner();
  SharedMemory memory = *SharedMemory::create("pin_test", 1 << 20);
  const absl::Status bound = pin.bind_memory(memory.data(), memory.bytes(), 0);
  ASSERT_TRUE(bound.ok()) << bound;
  EXPECT_THAT(policy_in_proc(memory.data()), ::testing::StartsWith("prefer"));
  EXPECT_EQ(*pin.numa_node_of(memory.data(), memory.bytes()), -1)
      << "it was not accessed yet: binding must not access it";
  std::memset(memory.data(), 1, memory.bytes());
  EXPECT_EQ(*pin.numa_node_of(memory.data(), memory.bytes()), 0);
}

TEST(Pin, TheBindingOfSharedMemoryHoldsForEveryMapping) {
  const Pinner pin = pinner();
  const SharedMemory memory = *SharedMemory::create("pin_test", 1 << 20);
  ASSERT_TRUE(pin.bind_memory(memory.data(), memory.bytes(), 0).ok());
  void* second = mmap(nullptr, memory.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, memory.span().fd, 0);
  ASSERT_NE(second, MAP_FAILED);
  EXPECT_THAT(policy_in_proc(second), ::testing::StartsWith("prefer")) << "another process would see it like this";
  munmap(second, memory.bytes());
}

TEST(Pin, UnalignedMemoryAndNoneAtAllCanBeBound) {
  const Pinner pin = pinner();
  SharedMemory memory = *SharedMemory::create("pin_test", 318040);
  EXPECT_TRUE(pin.bind_memory(memory.data(), memory.bytes(), 0).ok());
  EXPECT_TRUE(pin.bind_memory(nullptr, 0, 0).ok());
  EXPECT_EQ(*pin.numa_node_of(nullptr, 0), -1);
}

TEST(Pin, ANodeThatIsNotThereIsRefusedByName) {
  const Pinner pin = pinner();
  SharedMemory memory = *SharedMemory::create("pin_test", 4096);
  for (const int node : {-1, 4000}) {
    const absl::Status refused = pin.bind_memory(memory.data(), memory.bytes(), node);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("bind memory to NUMA node " + std::to_string(node)));
  }
}

TEST(Pin, HugePagesComeWhereTheSystemOffersThem) {
  const Pinner pin = pinner();
  constexpr size_t kBytes = size_t{16} << 20;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_TRUE(pin.bind_memory(memory, kBytes, 0).ok());
  std::memset(memory, 1, kBytes);
  const bool offered = setting("/sys/kernel/mm/transparent_hugepage/enabled").find("[never]") == std::string::npos &&
                       !setting("/sys/kernel/mm/transparent_hugepage/enabled").empty();
  if (offered) {
    EXPECT_GT(huge_page_bytes(memory), 0u);
    EXPECT_EQ(huge_page_bytes(memory), huge_page_bytes(static_cast<std::byte*>(memory) + kBytes / 2));
  } else {
    EXPECT_EQ(huge_page_bytes(memory), 0u);
  }
  munmap(memory, kBytes);
}

TEST(Pin, AnotherMachinesDescriptionBindsNothing) {
  setenv("HWLOC_SYNTHETIC", "pack:2 core:4 pu:1", 1);
  const absl::StatusOr<Pinner> opened = Pinner::open();
  unsetenv("HWLOC_SYNTHETIC");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("HWLOC_SYNTHETIC"));
}

}  // namespace
}  // namespace gradrail::topology
