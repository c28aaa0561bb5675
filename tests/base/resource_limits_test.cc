#include "base/resource_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradrail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The files of a recorded machine.
struct Recorded {
  std::map<std::string, std::string> files;

  Recorded& with(const std::string& path, const std::string& text) {
    files[path] = text;
    return *this;
  }
  SystemFiles reader() const {
    return [this](const std::string& path) {
      const auto found = files.find(path);
      return found == files.end() ? "" : found->second;
    };
  }
};

Recorded host() {
  Recorded host;
  host.with("/proc/meminfo", "MemTotal:       24000000 kB\nMemFree:  100 kB\nMemAvailable:   1000000 kB\n")
      .with("/proc/self/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax address space   unlimited  unlimited  bytes\n")
      .with("/proc/self/status", "Name:\tgradrail\nVmSize:\t  300000 kB\n")
      .with("/proc/self/cgroup", "0::/\n");
  return host;
}

TEST(AvailableMemory, IsThatOfTheRunningHost) {
  const std::optional<Rest> rest = available_memory();
  ASSERT_TRUE(rest.has_value());
  EXPECT_GT(rest->amount, 16u << 20);
  EXPECT_LT(rest->amount,
            static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
}

TEST(AvailableMemory, WithoutALimitIsMemAvailable) {
  const Recorded recorded = host();
  const std::optional<Rest> rest = available_memory(1, recorded.reader());
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(rest->amount, 1000000u * 1024);
  EXPECT_EQ(rest->text, "MemAvailable");
  EXPECT_FALSE(available_memory(1, Recorded().reader()).has_value());
}

// A limit of each hierarchy, at the cgroup itself or above it. The cache of files is free when it is needed.
TEST(AvailableMemory, FollowsTheSmallestLimitOfAllCgroups) {
  Recorded second = host();
  second.with("/proc/self/cgroup", "0::/user.slice/job\n")
      .with("/sys/fs/cgroup/user.slice/job/memory.max", "max\n")
      .with("/sys/fs/cgroup/user.slice/memory.max", "400000000\n")
      .with("/sys/fs/cgroup/user.slice/memory.current", "150000000\n")
      .with("/sys/fs/cgroup/user.slice/memory.stat", "anon 1\ninactive_file 40000000\nactive_file 10000000\n");
  std::optional<Rest> rest = available_memory(1, second.reader());
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(rest->amount, 300000000u);
  EXPECT_THAT(rest->text,
              HasSubstr("memory.max of /sys/fs/cgroup/user.slice is 400000000 bytes, and 100000000 are in use; raise"));
  second.with("/sys/fs/cgroup/user.slice/job/memory.high", "120000000")
      .with("/sys/fs/cgroup/user.slice/job/memory.current", "20000000");
  EXPECT_EQ(available_memory(1, second.reader())->amount, 100000000u);

  Recorded first = host();
  first.with("/proc/self/cgroup", "9:cpu,cpuacct:/job\n5:memory:/docker/abc\n0::/init\n")
      .with("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n")
      .with("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "500000000\n")
      .with("/sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "600000000\n")
      .with("/sys/fs/cgroup/memory/docker/memory.stat", "inactive_file 7\ntotal_inactive_file 50000000\n");
  rest = available_memory(1, first.reader());
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(rest->amount, 0u) << "more is in use than the limit, which has been lowered";
  EXPECT_THAT(rest->text, HasSubstr("memory.limit_in_bytes of /sys/fs/cgroup/memory/docker is 500000000 bytes"));
  // A container sees its own limit at the mount, below the path of the host.
  first.files.erase("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes");
  first.with("/sys/fs/cgroup/memory/memory.limit_in_bytes", "300000000");
  EXPECT_EQ(available_memory(1, first.reader())->amount, 300000000u);
}

TEST(AvailableMemory, AnAddressSpaceIsThatOfEachProcess) {
  Recorded recorded = host();
  recorded.with("/proc/self/limits", "Max address space         400000000            unlimited            bytes\n");
  EXPECT_EQ(available_memory(1, recorded.reader())->amount, 400000000u - 300000u * 1024);
  EXPECT_EQ(available_memory(3, recorded.reader())->amount, 3 * (400000000u - 300000u * 1024));
  EXPECT_THAT(available_memory(1, recorded.reader())->text, HasSubstr("`ulimit -v`"));
}

TEST(AvailableMemory, ARefusalHasBothNumbersTheLimitAndTheRemedies) {
  const Recorded recorded = host();
  EXPECT_TRUE(check_available_memory("x needs", 1e9, "give less", 1, recorded.reader()).ok());
  const absl::Status refused = check_available_memory("x needs", 1e15, "give less", 1, recorded.reader());
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(message_of(refused),
            "x needs at least 1000000000000000 bytes of memory on this host, and 1024000000 are available "
            "(MemAvailable); give less");
}

TEST(CgroupFolders, AreThoseOfTheProcessAndAllAboveIt) {
  Recorded recorded;
  recorded.with("/proc/self/cgroup", "3:cpu,memory:/a:b/c\n2:cpuset:/d\nnonsense\n0::/\n");
  EXPECT_THAT(cgroup_folders("memory", recorded.reader()),
              ElementsAre("/sys/fs/cgroup/memory/a:b/c", "/sys/fs/cgroup/memory/a:b", "/sys/fs/cgroup/memory",
                          "/sys/fs/cgroup", "/sys/fs/cgroup/unified"));
  std::string deep = "0::";
  for (int i = 0; i < 1000; ++i) deep += "/x";
  recorded.with("/proc/self/cgroup", deep);
  EXPECT_LT(cgroup_folders("memory", recorded.reader()).size(), 100u);
}

TEST(AvailableTasks, FollowTheSmallestPidsMax) {
  Recorded recorded = host();
  recorded.with("/proc/self/cgroup", "4:pids:/a/b\n")
      .with("/sys/fs/cgroup/pids/a/b/pids.max", "max\n")
      .with("/sys/fs/cgroup/pids/a/pids.max", "40\n")
      .with("/sys/fs/cgroup/pids/a/pids.current", "15\n");
  const std::optional<Rest> rest = available_tasks(recorded.reader());
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(rest->amount, 25u);
  EXPECT_THAT(rest->text, HasSubstr("pids.max of /sys/fs/cgroup/pids/a is 40 processes and threads, and 15 run"));
  EXPECT_THAT(std::string(message_of(kernel_refusal("fork", EAGAIN, recorded.reader()))),
              HasSubstr("fork: Resource temporarily unavailable (pids.max of /sys/fs/cgroup/pids/a is 40"));
}

TEST(KernelRefusal, NamesTheLimitAndItsValue) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const absl::Status files = kernel_refusal("socket", EMFILE);
  EXPECT_TRUE(absl::IsResourceExhausted(files));
  EXPECT_THAT(std::string(message_of(files)),
              HasSubstr("socket: Too many open files (this process may open " + std::to_string(limit.rlim_cur)));
  const Recorded recorded = host();
  EXPECT_THAT(std::string(message_of(kernel_refusal("mmap", ENOMEM, recorded.reader()))),
              HasSubstr("1024000000 bytes of memory are available: MemAvailable"));
  EXPECT_TRUE(absl::IsResourceExhausted(kernel_refusal("open", ENFILE)));
  const absl::Status size = kernel_refusal("ftruncate", EFBIG);
  EXPECT_TRUE(absl::IsResourceExhausted(size));
  EXPECT_THAT(std::string(message_of(size)), HasSubstr("raise `ulimit -f`"));
  EXPECT_FALSE(absl::IsResourceExhausted(kernel_refusal("open", EACCES)));
  EXPECT_EQ(limit_text(EACCES), "");
}

}  // namespace
}  // namespace gradrail
