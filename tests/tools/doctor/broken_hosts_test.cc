// Recorded machines with one fault each, as their kernels show it. They replace hardware that is not available.
#include <ostream>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gmock/gmock.h"
#include "tests/tools/doctor/recorded_host.h"

namespace gradrail::tools::doctor {
namespace {

using testing::HasSubstr;

constexpr const char* kPort0 = "/sys/class/infiniband/mlx5_0/ports/1";
constexpr const char* kPort1 = "/sys/class/infiniband/mlx5_1/ports/1";
constexpr const char* kGpu = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:19:00.0";
constexpr const char* kNic = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:1c:00.0";
constexpr const char* kSwitch = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0";
constexpr const char* kVersion = "/proc/driver/nvidia/version";

void without_dma_buf(RecordedHost& host) {
  host.write("/observed/cuda", "version 13.0\ngpu 0000:19:00.0 -\ngpu 0000:1b:00.0 -");
}

void without_cublas(RecordedHost& host) {
  host.write("/observed/cuda",
             "version 13.0\ngpu 0000:19:00.0 dma_buf\ngpu 0000:1b:00.0 dma_buf\n"
             "no-cublas no cuBLAS (libcublas.so.13: cannot open shared object file; searched /usr/local/cuda*/lib64, "
             "/usr/bin/../lib/python3*/site-packages/nvidia/*/lib)");
}

struct BrokenHost {
  const char* name;
  void (*damage)(RecordedHost&);
  const char* check;
  State state;
  std::string evidence;  ///< that must be in it
  std::string remedy;
};

/// Else their bytes are printed, which differ from run to run.
void PrintTo(const BrokenHost& host, std::ostream* out) { *out << host.name; }

const BrokenHost kHosts[] = {
    {"NoRdmaDevice",
     [](RecordedHost& host) {
       host.remove("/sys/class/infiniband").remove("/sys/class/infiniband_verbs");
       host.remove("/sys/bus/pci/devices/0000:1a:00.0").remove("/sys/bus/pci/devices/0000:1c:00.0");
     },
     "rdma-devices", State::missing, "/sys/class/infiniband", "rdma link add"},
    {"CardsWithoutTheirRdmaDriver",
     [](RecordedHost& host) { host.remove("/sys/class/infiniband").remove("/sys/class/infiniband_verbs"); },
     "rdma-devices", State::missing, "0000:1a:00.0, 0000:1c:00.0", "sudo modprobe mlx5_ib"},
    {"UverbsModuleNotLoaded",
     [](RecordedHost& host) { host.remove("/sys/class/infiniband_verbs").write("/observed/verbs", ""); }, "rdma-verbs",
     State::broken, "/sys/class/infiniband_verbs", "sudo modprobe ib_uverbs"},
    {"OnePortDown",
     [](RecordedHost& host) {
       host.write(std::string(kPort1) + "/state", "1: DOWN").write(std::string(kPort1) + "/phys_state", "3: Disabled");
     },
     "rdma-ports", State::warning, "mlx5_1 port 1: 1: DOWN (3: Disabled)", "sudo ip link set ens2f0np0 up"},
    {"NoSubnetManager",
     [](RecordedHost& host) {
       host.write(std::string(kPort0) + "/state", "2: INIT").write(std::string(kPort1) + "/state", "1: DOWN");
     },
     "rdma-ports", State::broken, "2: INIT", "opensm"},
    {"OnlyRoceVersion1",
     [](RecordedHost& host) {
       host.write(std::string(kPort1) + "/gid_attrs/types/1", "IB/RoCE v1");
       host.write(std::string(kPort1) + "/gid_attrs/types/3", "IB/RoCE v1");
     },
     "rdma-gids", State::broken, std::string(kPort1) + "/gid_attrs/types", "cma_roce_mode -d mlx5_1"},
    {"OnlyLinkLocalGids", [](RecordedHost& host) { host.remove(std::string(kPort1) + "/gids/3"); }, "rdma-gids",
     State::warning, "link-local", "sudo ip address add"},
    {"LimitedMembersOfThePartition", [](RecordedHost& host) { host.write(std::string(kPort0) + "/pkeys/0", "0x7fff"); },
     "rdma-pkeys", State::broken, std::string(kPort0) + "/pkeys", "/etc/opensm/partitions.conf"},
    {"SmallMtu",
     [](RecordedHost& host) {
       host.write("/observed/verbs",
                  "device mlx5_1 opened\nport mlx5_1 1 4096 1024\ndevice mlx5_0 opened\n"
                  "port mlx5_0 1 4096 4096");
     },
     "rdma-mtu", State::warning, "mlx5_1 port 1: active 1024, largest 4096", "sudo ip link set ens2f0np0 mtu"},
    {"SmallMtuOfTheSubnet",
     [](RecordedHost& host) {
       host.write("/observed/verbs",
                  "device mlx5_1 opened\nport mlx5_1 1 4096 4096\ndevice mlx5_0 opened\n"
                  "port mlx5_0 1 4096 2048");
     },
     "rdma-mtu", State::warning, "mlx5_0 port 1: active 2048", "/etc/opensm/partitions.conf"},
    {"NoProviderForTheDriver",
     [](RecordedHost& host) { host.write("/observed/verbs", "device mlx5_0 opened\nport mlx5_0 1 4096 4096"); },
     "rdma-verbs", State::missing, "libibverbs does not list mlx5_1 (mlx5_core, 0000:1c:00.0)",
     "sudo apt install ibverbs-providers"},
    {"NoLibibverbs",
     [](RecordedHost& host) { host.write("/observed/verbs", "failed: libibverbs.so.1: cannot open shared object"); },
     "rdma-verbs", State::missing, "libibverbs.so.1: cannot open", "sudo apt install ibverbs-providers"},
    {"VerbsCannotOpen",
     [](RecordedHost& host) { host.write("/observed/verbs", "device mlx5_0 Cannot allocate memory"); }, "rdma-verbs",
     State::broken, "mlx5_0: Cannot allocate memory", "ibv_devinfo -d mlx5_0"},
    {"NoAccessToUverbs", [](RecordedHost& host) { host.write("/observed/verbs", "device mlx5_1 Permission denied"); },
     "rdma-verbs", State::broken, "/dev/infiniband/uverbs1: Permission denied", "chmod 0666"},
    {"ContainerWithoutUverbs", [](RecordedHost& host) { host.remove("/dev/infiniband").write("/observed/verbs", ""); },
     "rdma-verbs", State::missing, "/dev/infiniband/uverbs0", "--device=/dev/infiniband/uverbs0"},
    {"MemlockOf64KiB", [](RecordedHost& host) { host.write("/proc/self/limits", limits("65536")); }, "memlock",
     State::broken, "64 KiB in /proc/self/limits", "ulimit -l unlimited"},
    {"MemlockOf8MiB", [](RecordedHost& host) { host.write("/proc/self/limits", limits("8388608")); }, "memlock",
     State::warning, "8 MiB in /proc/self/limits", "LimitMEMLOCK=infinity"},
    {"NoWayToGpuMemory",
     [](RecordedHost& host) {
       without_dma_buf(host);
       host.remove("/sys/module/nvidia_peermem");
     },
     "gpu-nic-access", State::missing, "GPU 0000:19:00.0: no dma-buf (libcuda.so.1), and no peer-memory module",
     "sudo modprobe nvidia_peermem"},
    {"PeerMemoryModuleStarting",
     [](RecordedHost& host) {
       without_dma_buf(host);
       host.write("/sys/module/nvidia_peermem/initstate", "coming");
     },
     "gpu-nic-access", State::missing, "kernel module nvidia_peermem is not live", "nvidia-open"},
    {"Nouveau",
     [](RecordedHost& host) { host.link(std::string(kGpu) + "/driver", "../../../../bus/pci/drivers/nouveau"); },
     "gpu-driver", State::broken, "driver nouveau", "blacklist nouveau"},
    {"NoNvidiaDriver",
     [](RecordedHost& host) {
       host.remove(kVersion);
       host.write("/observed/cuda", "failed: libcuda.so.1: cannot open shared object file");
     },
     "gpu-driver", State::missing, kVersion, "sudo apt install nvidia-open"},
    {"DriverWithoutGpuThatDoesNotStart",
     [](RecordedHost& host) {
       host.remove(kVersion).remove("/sys/bus/pci/devices");
       host.write("/observed/cuda", "failed: the NVIDIA driver does not start: CUDA_ERROR_UNKNOWN");
     },
     "gpu-driver", State::warning, "CUDA_ERROR_UNKNOWN", "nvidia-smi"},
    {"LibraryAndModuleOfDifferentDrivers",
     [](RecordedHost& host) {
       host.write("/observed/cuda", "failed: the NVIDIA driver does not start: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
     },
     "gpu-driver", State::broken, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot"},
    {"AGpuOfAnotherProcess",
     [](RecordedHost& host) {
       host.write("/observed/cuda",
                  "version 13.0\ngpu 0000:19:00.0 dma_buf\ngpu 0000:1b:00.0 dma_buf\n"
                  "not-opened 0000:1b:00.0 GPU 1: opening it: CUDA_ERROR_DEVICE_UNAVAILABLE\ncublas libcublas.so.13");
     },
     "gpu-driver", State::broken, "GPU 0000:1b:00.0: GPU 1: opening it: CUDA_ERROR_DEVICE_UNAVAILABLE", "nvidia-smi"},
    {"NoCublas", without_cublas, "gpu-cublas", State::missing,
     "no cuBLAS (libcublas.so.13: cannot open shared object file; searched /usr/local/cuda*/lib64, "
     "/usr/bin/../lib/python3*/site-packages/nvidia/*/lib)",
     "pip install nvidia-cublas"},
    {"IommuTranslates",
     [](RecordedHost& host) {
       host.link(std::string(kGpu) + "/iommu_group", "../../../../kernel/iommu_groups/31");
       host.write("/sys/kernel/iommu_groups/31/type", "DMA-FQ");
     },
     "iommu", State::warning, "/sys/kernel/iommu_groups/31/type: DMA-FQ", "iommu=pt"},
    {"AcsRedirects",
     [](RecordedHost& host) { host.write_bytes(std::string(kSwitch) + "/config", config_space(0x001d)); }, "pci-acs",
     State::warning, "0000:16:00.0: redirects peers' requests or completions (/sys/bus/pci/devices/0000:16:00.0/config",
     "setpci -s 0000:16:00.0 ECAP_ACS+0x6.w=0000"},
    {"ConfigurationSpaceOfAUser",
     [](RecordedHost& host) { host.write_bytes(std::string(kSwitch) + "/config", config_space(0).substr(0, 64)); },
     "pci-acs", State::unknown, "/sys/bus/pci/devices/0000:16:00.0/config", "sudo gradrail doctor"},
    {"NarrowLink", [](RecordedHost& host) { host.write(std::string(kNic) + "/current_link_width", "8"); }, "pci-link",
     State::warning, "0000:1c:00.0: x8 of x16", "lspci -vv -s 0000:1c:00.0"},
    {"NumaBalancing", [](RecordedHost& host) { host.write("/proc/sys/kernel/numa_balancing", "1"); }, "numa-balancing",
     State::warning, "/proc/sys/kernel/numa_balancing: 1", "sysctl kernel.numa_balancing=0"},
    {"GovernorPowersave",
     [](RecordedHost& host) { host.write("/sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave"); },
     "cpu-governor", State::warning, "/sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "cpupower frequency-set"},
    {"NoHugePages",
     [](RecordedHost& host) { host.write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"); },
     "hugepages", State::warning, "/sys/kernel/mm/transparent_hugepage/enabled", "echo madvise"},
    {"CgroupWithLittleMemory",
     [](RecordedHost& host) { host.write("/sys/fs/cgroup/user.slice/user-1000.slice/memory.max", "536870912"); },
     "cgroup-limits", State::warning,
     "512 MiB of memory are left: memory.max of /sys/fs/cgroup/user.slice/user-1000.slice", "MemoryMax="},
    {"CgroupWithFewThreads", [](RecordedHost& host) { host.write("/sys/fs/cgroup/user.slice/pids.max", "100"); },
     "cgroup-limits", State::warning, "100 threads are left: pids.max of /sys/fs/cgroup/user.slice", "TasksMax="},
    {"CgroupWithLittleCpu",
     [](RecordedHost& host) {
       host.write("/sys/fs/cgroup/user.slice/cpu.max", "150000 100000");
       host.write("/sys/fs/cgroup/user.slice/user-1000.slice/cpu.max", "max 100000");
     },
     "cgroup-limits", State::warning, "/sys/fs/cgroup/user.slice/cpu.max: 150 % of one cpu", "CPUQuota="},
    {"CgroupOfTheFirstHierarchy",
     [](RecordedHost& host) {
       host.write("/proc/self/cgroup", "4:cpu,cpuacct:/job\n0::/")
           .write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000");
       host.write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000");
     },
     "cgroup-limits", State::warning, "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us: 50 % of one cpu", "CPUQuota="},
};

class BrokenHosts : public testing::TestWithParam<BrokenHost> {};

TEST_P(BrokenHosts, IsSeenWithEvidenceAndRemedy) {
  const BrokenHost& broken = GetParam();
  RecordedHost host = healthy_host();
  broken.damage(host);
  const Check check = check_in(host.examine(), broken.check);
  EXPECT_STREQ(name_of(check.state), name_of(broken.state));
  EXPECT_THAT(fmt::format("{}", fmt::join(check.evidence, "\n")), HasSubstr(broken.evidence));
  EXPECT_THAT(check.remedy, HasSubstr(broken.remedy));
  EXPECT_FALSE(check.consequence.empty());
}

INSTANTIATE_TEST_SUITE_P(Recorded, BrokenHosts, testing::ValuesIn(kHosts),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(HealthyHost, HasNothingToComplainAbout) {
  const Report report = healthy_host().examine({"rdma", "gpu", "gpu-direct"});
  for (const Check& check : report.checks) {
    if (check.name == "tasks") continue;
    EXPECT_STREQ(name_of(check.state), "ok")
        << check.name << ": " << fmt::format("{}", fmt::join(check.evidence, "; ")) << ": " << check.consequence;
    EXPECT_FALSE(check.evidence.empty()) << check.name;
    EXPECT_EQ(check.remedy, "") << check.name;
  }
  EXPECT_TRUE(report.all_required_hold());
  EXPECT_TRUE(report.proofs.empty());
}

TEST(PciAcs, OfAHostWithoutGpusIsNotApplicable) {
  RecordedHost host = healthy_host();
  host.write_bytes(std::string(kSwitch) + "/config", config_space(0x001d));
  host.remove("/sys/bus/pci/devices/0000:19:00.0").remove("/sys/bus/pci/devices/0000:1b:00.0");
  host.write("/observed/cuda", "failed: libcuda.so.1: cannot open shared object file");
  EXPECT_STREQ(name_of(check_in(host.examine(), "pci-acs").state), "not applicable");
}

TEST(Requirements, SayWhichCheckFailed) {
  RecordedHost host = healthy_host();
  host.write("/proc/self/limits", limits("65536"));
  for (const Requirement& each : host.examine({"rdma", "gpu", "gpu-direct"}).requirements) {
    EXPECT_EQ(each.holds, each.word == "gpu") << each.why;
    if (!each.holds) {
      EXPECT_THAT(each.why, HasSubstr("memlock is broken"));
    }
  }
}

TEST(Requirements, WhatIsNotThereDoesNotHold) {
  RecordedHost host = healthy_host();
  host.remove("/sys/class/infiniband");
  const Report report = host.examine({"rdma"});
  ASSERT_FALSE(report.all_required_hold());
  EXPECT_THAT(report.requirements[0].why, HasSubstr("rdma-devices is missing"));
  RecordedHost without_gpu;
  ASSERT_FALSE(without_gpu.write("/proc/version", "Linux").examine({"gpu"}).all_required_hold());
  RecordedHost without_driver;
  without_driver.write("/observed/cuda", "failed: the NVIDIA driver does not start: CUDA_ERROR_UNKNOWN");
  const Report unusable = without_driver.examine({"gpu"});
  ASSERT_FALSE(unusable.all_required_hold());
  EXPECT_THAT(unusable.requirements[0].why, HasSubstr("gpu-driver is warning"));
}

TEST(Requirements, OneWayToGpuMemoryIsEnough) {
  RecordedHost module_alone = healthy_host();
  without_dma_buf(module_alone);
  EXPECT_TRUE(module_alone.examine({"gpu-direct"}).all_required_hold());
  RecordedHost dma_buf_alone = healthy_host();
  dma_buf_alone.remove("/sys/module/nvidia_peermem");
  EXPECT_TRUE(dma_buf_alone.examine({"gpu-direct"}).all_required_hold());
  without_dma_buf(dma_buf_alone);
  EXPECT_FALSE(dma_buf_alone.examine({"gpu-direct"}).all_required_hold());
}

TEST(Requirements, AGpuThatTrainsNeedsCublasAndOneOfAPsDoesNot) {
  RecordedHost host = healthy_host();
  without_cublas(host);
  for (const Requirement& each : host.examine({"gpu", "gpu-direct"}).requirements) {
    EXPECT_EQ(each.holds, each.word == "gpu-direct") << each.word << ": " << each.why;
    if (!each.holds) {
      EXPECT_THAT(each.why, HasSubstr("gpu-cublas is missing"));
    }
  }
}

TEST(Requirements, AnAbsentTransferShowsNothing) {
  const Report report = healthy_host().examine({"tcp"});
  ASSERT_EQ(report.requirements.size(), 1u);
  EXPECT_FALSE(report.all_required_hold());
  EXPECT_THAT(report.requirements[0].why, HasSubstr("--no-proof"));
}

TEST(Requirements, UnknownWordsAreRefusedByName) {
  const absl::StatusOr<std::vector<std::string>> words = parse_requirements("rdma,speed");
  EXPECT_EQ(words.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(words.status().message()), HasSubstr("'speed': there are rdma, gpu, gpu-direct"));
}

}  // namespace
}  // namespace gradrail::tools::doctor
