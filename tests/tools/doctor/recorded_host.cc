#include "tests/tools/doctor/recorded_host.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "base/resource_limits.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

namespace fs = std::filesystem;

bool is_below(const std::string& path, const std::string& folder) {
  return path == folder || path.compare(0, folder.size() + 1, folder + "/") == 0;
}

struct PciCard {
  const char* address;
  const char* parents;  ///< below /sys/devices
  const char* vendor;
  const char* device;
  const char* device_class;
  const char* driver;
  int numa_node;
};

void add_pci(RecordedHost& host, const PciCard& card) {
  const std::string folder = fmt::format("/sys/devices/{}/{}", card.parents, card.address);
  host.link(fmt::format("/sys/bus/pci/devices/{}", card.address),
            fmt::format("../../../devices/{}/{}", card.parents, card.address));
  host.write(folder + "/vendor", card.vendor);
  host.write(folder + "/device", card.device);
  host.write(folder + "/class", card.device_class);
  host.write(folder + "/numa_node", std::to_string(card.numa_node));
  host.write_bytes(folder + "/config", config_space(0));
  host.link(folder + "/driver", fmt::format("../../../../bus/pci/drivers/{}", card.driver));
}

/// Cards have links. No check reads the link of a bridge.
void add_pci_link(RecordedHost& host, const PciCard& card, const char* speed) {
  const std::string folder = fmt::format("/sys/devices/{}/{}", card.parents, card.address);
  for (const char* which : {"current", "max"}) {
    host.write(fmt::format("{}/{}_link_speed", folder, which), speed);
    host.write(fmt::format("{}/{}_link_width", folder, which), "16");
  }
}

constexpr const char* kNoGid = "0000:0000:0000:0000:0000:0000:0000:0000";

struct Gids {
  const char* gid;
  const char* type;
};

void add_port(RecordedHost& host, const std::string& device, const char* layer, const std::vector<Gids>& gids,
              const std::string& interface) {
  const std::string port = fmt::format("/sys/class/infiniband/{}/ports/1", device);
  host.write(port + "/state", "4: ACTIVE").write(port + "/phys_state", "5: LinkUp");
  host.write(port + "/rate", "400 Gb/sec (4X NDR)").write(port + "/link_layer", layer);
  for (size_t i = 0; i < gids.size(); ++i) {
    host.write(fmt::format("{}/gids/{}", port, i), gids[i].gid);
    if (gids[i].type == nullptr) continue;
    host.write(fmt::format("{}/gid_attrs/types/{}", port, i), gids[i].type);
    if (!interface.empty()) host.write(fmt::format("{}/gid_attrs/ndevs/{}", port, i), interface);
  }
  host.write(port + "/pkeys/0", "0xffff");
  if (std::string_view(layer) == "InfiniBand") host.write(port + "/pkeys/1", "0x0000");
}

void add_hca(RecordedHost& host, const std::string& device, const std::string& address, int number) {
  const std::string folder = "/sys/class/infiniband/" + device;
  host.link(folder + "/device", "../../../devices/" + address);
  host.write(folder + "/node_desc", "node17 HCA-" + std::to_string(number));
  const std::string verbs = fmt::format("/sys/class/infiniband_verbs/uverbs{}", number);
  host.write(verbs + "/ibdev", device);
  host.write(fmt::format("/dev/infiniband/uverbs{}", number), "");
}

void add_cards(RecordedHost& host) {
  const PciCard root{"0000:15:01.0", "pci0000:15", "0x8086", "0x352a", "0x060400", "pcieport", 0};
  const PciCard up{"0000:16:00.0", "pci0000:15/0000:15:01.0", "0x1000", "0xc030", "0x060400", "pcieport", 0};
  const char* const below = "pci0000:15/0000:15:01.0/0000:16:00.0";
  const PciCard cards[] = {{"0000:19:00.0", below, "0x10de", "0x2330", "0x030200", "nvidia", 0},
                           {"0000:1a:00.0", below, "0x15b3", "0x1021", "0x020700", "mlx5_core", 0},
                           {"0000:1b:00.0", below, "0x10de", "0x2330", "0x030200", "nvidia", 0},
                           {"0000:1c:00.0", below, "0x15b3", "0x1021", "0x020000", "mlx5_core", 0}};
  add_pci(host, root);
  add_pci(host, up);
  for (const PciCard& card : cards) {
    add_pci(host, card);
    add_pci_link(host, card, "32.0 GT/s PCIe");
  }
  add_hca(host, "mlx5_0", fmt::format("{}/0000:1a:00.0", below), 0);
  add_hca(host, "mlx5_1", fmt::format("{}/0000:1c:00.0", below), 1);
}

void add_networks(RecordedHost& host) {
  add_port(host, "mlx5_0", "InfiniBand", {{"fe80:0000:0000:0000:a088:c203:00aa:1234", "IB/RoCE v1"}}, "");
  add_port(host, "mlx5_1", "Ethernet",
           {{"fe80:0000:0000:0000:a288:c2ff:feaa:1235", "IB/RoCE v1"},
            {"fe80:0000:0000:0000:a288:c2ff:feaa:1235", "RoCE v2"},
            {"0000:0000:0000:0000:0000:ffff:0a00:0002", "IB/RoCE v1"},
            {"0000:0000:0000:0000:0000:ffff:0a00:0002", "RoCE v2"},
            {kNoGid, nullptr}},
           "ens2f0np0");
  host.write("/observed/addresses",
             "lo 127.0.0.1\nens2f0np0 10.0.0.2\nib0 10.1.0.2\nens2f0np0 fe80::a288:c2ff:feaa:1235");
  host.write("/observed/verbs",
             "device mlx5_0 opened\nport mlx5_0 1 4096 4096\ndevice mlx5_1 opened\nport mlx5_1 1 4096 4096");
}

void add_nvidia(RecordedHost& host) {
  host.write("/proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  "
             "(dvs-builder@U22-I3-AF03-09-1)  Sun Jul 27 06:54:38 UTC 2025\n"
             "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)");
  host.write("/sys/module/nvidia_peermem/initstate", "live");
  host.write("/observed/cuda",
             "version 13.0\ngpu 0000:19:00.0 dma_buf\ngpu 0000:1b:00.0 dma_buf\n"
             "cublas libcublas.so.13");
}

void add_system(RecordedHost& host) {
  host.write("/proc/sys/kernel/osrelease", "6.1.0-28-amd64").write("/proc/sys/kernel/hostname", "node17");
  host.write("/etc/os-release", "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"");
  host.write("/proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz-6.1.0-28-amd64 root=/dev/sda1 ro iommu=pt");
  host.write("/proc/self/limits", limits("unlimited"));
  host.write("/proc/self/status", "Name:\tgradrail\nCapEff:\t0000000000000000");
  host.write("/proc/self/cgroup", "0::/user.slice/user-1000.slice");
  host.write("/sys/fs/cgroup/user.slice/user-1000.slice/memory.max", "max");
  host.write("/sys/fs/cgroup/user.slice/pids.max", "8192");
  host.write("/proc/sys/kernel/numa_balancing", "0");
  host.write("/sys/devices/system/node/node0/cpulist", "0-31").write("/sys/devices/system/node/node1/cpulist", "32-63");
  host.write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
  for (int cpu = 0; cpu < 4; ++cpu)
    host.write(fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor", cpu), "performance");
}

}  // namespace

RecordedHost& RecordedHost::write(const std::string& path, std::string_view text) {
  return write_bytes(path, std::string(text) + "\n");
}

RecordedHost& RecordedHost::write_bytes(const std::string& path, std::string bytes) {
  files_[path] = std::move(bytes);
  return *this;
}

RecordedHost& RecordedHost::link(const std::string& path, const std::string& target) {
  links_[path] = target;
  return *this;
}

RecordedHost& RecordedHost::remove(const std::string& path) {
  const size_t before = files_.size() + links_.size();
  for (auto* table : {&files_, &links_})
    std::erase_if(*table, [&](const auto& entry) { return is_below(entry.first, path); });
  EXPECT_LT(files_.size() + links_.size(), before) << path << " was not there";
  return *this;
}

void RecordedHost::save(const std::string& folder) const {
  for (const auto& [path, text] : files_) {
    fs::create_directories(fs::path(folder + path).parent_path());
    std::ofstream(folder + path, std::ios::binary) << text;
  }
  for (const auto& [path, target] : links_) {
    fs::create_directories(fs::path(folder + path).parent_path());
    fs::create_symlink(target, folder + path);
  }
}

System system_of(const std::string& folder) {
  return {folder, [folder](const std::string& name, const System::Ask&) -> absl::StatusOr<std::string> {
            const std::string text = read_system_file(fmt::format("{}/observed/{}", folder, name));
            constexpr std::string_view kFailed = "failed: ";
            if (text.empty()) return absl::NotFoundError(fmt::format("{} is not recorded", name));
            if (!text.starts_with(kFailed)) return text;
            return absl::UnknownError(printable(trimmed(text.substr(kFailed.size()))));
          }};
}

Report RecordedHost::examine(const std::vector<std::string>& required) const {
  const Scratch scratch;
  save(scratch.path());
  return doctor::examine(system_of(scratch.path()), {.prove = false, .required = required});
}

Scratch::Scratch() {
  static std::atomic<int> count = 0;
  path_ = fmt::format("{}doctor_{}_{}", testing::TempDir(), getpid(), count++);
}

Scratch::~Scratch() {
  std::error_code error;
  fs::remove_all(path_, error);
}

RecordedHost healthy_host() {
  RecordedHost host;
  add_cards(host);
  add_networks(host);
  add_nvidia(host);
  add_system(host);
  return host;
}

std::string config_space(std::optional<uint16_t> acs_control) {
  std::string bytes(4096, '\0');
  const auto put = [&](size_t at, uint32_t word) {
    for (size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(word >> (8 * i) & 0xff);
  };
  put(0x100, 0x14820001);  // Advanced Error Reporting, version 2, next at 0x148
  if (acs_control) {
    put(0x148, 0x0001000d);
    put(0x14c, static_cast<uint32_t>(*acs_control) << 16 | 0x005f);
  }
  return bytes;
}

std::string limits(std::string_view memlock) {
  return fmt::format(
      "Limit                     Soft Limit           Hard Limit           Units     \n"
      "Max cpu time              unlimited            unlimited            seconds   \n"
      "Max locked memory         {:<20} {:<20} bytes     \n"
      "Max open files            1024                 1048576              files     ",
      memlock, memlock);
}

Check check_in(const Report& report, const std::string& name) {
  for (const Check& check : report.checks)
    if (check.name == name) return check;
  ADD_FAILURE() << "no check " << name;
  return {};
}

}  // namespace gradrail::tools::doctor
