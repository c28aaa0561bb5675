// The kernel, NUMA nodes, pages, clocks, and the limits of this process.
#include <algorithm>
#include <map>

#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tools/doctor/facts/read.h"
#include "topology/discover/discover.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kNodes = "/sys/devices/system/node";
constexpr const char* kCpus = "/sys/devices/system/cpu";

/// Entries with numbered names such as node0 and cpu12, and not nodes or cpufreq.
std::vector<std::string> numbered(const System& system, const std::string& folder, std::string_view prefix) {
  std::vector<std::string> found;
  for (const std::string& name : system.names(folder))
    if (name.compare(0, prefix.size(), prefix) == 0 && number_of(name.substr(prefix.size()))) found.push_back(name);
  return found;
}

absl::StatusOr<std::string> probe_hwloc() {
  GRADRAIL_ASSIGN_OR_RETURN(const topology::Machine machine, topology::discover());
  return fmt::format("{} packages, {} NUMA nodes, {} cores, {} GPUs, {} NICs", machine.packages.size(),
                     machine.numa_nodes.size(), machine.cores.size(), machine.gpus.size(), machine.nics.size());
}

/// The rest of the first line that begins with `name`.
std::string field(const System& system, const std::string& path, std::string_view name) {
  for (const std::string& line : lines_of(system.text(path)))
    if (line.compare(0, name.size(), name) == 0) return std::string(trimmed(line.substr(name.size())));
  return "";
}

void read_system(const System& system, Facts& host) {
  host.set("hostname", system.line("/proc/sys/kernel/hostname"));
  std::string distribution = printable(field(system, "/etc/os-release", "PRETTY_NAME="));
  std::erase(distribution, '"');
  host.set("distribution", distribution);
  // arm64 has no such line.
  const std::string processor = field(system, "/proc/cpuinfo", "model name");
  host.set("processor", printable(trimmed(processor.substr(processor.find(':') + 1))));
  const std::string release = system.line("/proc/sys/kernel/osrelease");
  const std::optional<Version> version = version_of(release);
  host.set("kernel", release);
  host.set_if("kernel_has_version", version.has_value());
  host.set_if("kernel_before_5_12", version && *version < Version{5, 12, 0});
}

void read_nodes(const System& system, Facts& host) {
  const std::vector<std::string> nodes = numbered(system, kNodes, "node");
  host.set("numa_nodes", nodes.size());
  bool differ = false;
  for (const std::string& node : nodes) {
    const std::vector<std::string> distances = words_of(system.line(fmt::format("{}/{}/distance", kNodes, node)));
    for (const std::string& each : distances) differ = differ || each != distances.front();
  }
  host.set_if("distances_differ", differ);
  host.set("numa_balancing", system.line("/proc/sys/kernel/numa_balancing"));
  const absl::StatusOr<std::string> found = system.observe("hwloc", probe_hwloc);
  host.set("hwloc", found.ok() ? printable(trimmed(*found)) : "");
  host.set("hwloc_error", std::string(message_of(found.status())));
  host.set_if("hwloc_not_recorded", absl::IsNotFound(found.status()));
}

void read_pages(const System& system, Facts& host) {
  const std::string pools = "/sys/kernel/mm/hugepages";
  std::vector<std::string> reserved;
  for (const std::string& pool : system.names(pools)) {
    const uint64_t count = system.number(fmt::format("{}/{}/nr_hugepages", pools, pool)).value_or(0);
    if (count > 0) reserved.push_back(fmt::format("{} of {}", count, printable(pool)));
  }
  // The word in brackets is the active one.
  const std::string word = system.line("/sys/kernel/mm/transparent_hugepage/enabled");
  host.set("transparent_hugepages", word.empty() ? "not there" : word);
  host.set("hugepages", reserved.empty() ? "none reserved" : fmt::format("{}", fmt::join(reserved, ", ")));
  host.set_if("hugepages_reserved", !reserved.empty());
  host.set_if("hugepages_on_request",
              word.find("[always]") != std::string::npos || word.find("[madvise]") != std::string::npos);
}

void read_governors(const System& system, Facts& host) {
  std::map<std::string, int> count;
  std::string slow;
  for (const std::string& cpu : numbered(system, kCpus, "cpu")) {
    const std::string file = fmt::format("{}/{}/cpufreq/scaling_governor", kCpus, cpu);
    const std::string governor = system.line(file);
    if (governor.empty()) continue;
    // "performance" is the governor that keeps the clock up while a core waits. One example is enough as evidence.
    if (governor != "performance" && slow.empty()) slow = file;
    ++count[governor];
  }
  std::vector<std::string> counts;
  for (const auto& [governor, cpus] : count) counts.push_back(fmt::format("{} on {} cpus", governor, cpus));
  host.set("governors", fmt::format("{}", fmt::join(counts, ", ")));
  host.set("slow_governor_file", slow);
}

void read_process(const System& system, Facts& host) {
  // The soft limit is the first number, and the one that applies: no part of this program raises it.
  const std::vector<std::string> words = words_of(field(system, "/proc/self/limits", "Max locked memory"));
  const std::optional<uint64_t> bytes = words.empty() ? std::nullopt : number_of(words[0]);
  host.set("memlock", bytes ? std::to_string(*bytes) : !words.empty() && words[0] == "unlimited" ? words[0] : "");
  host.set("memlock_text", bytes ? size_text(*bytes) : "");
  constexpr int kIpcLock = 14;  // linux/capability.h
  const std::optional<uint64_t> capabilities = number_of(field(system, "/proc/self/status", "CapEff:"), 16);
  host.set_if("may_lock", capabilities && (*capabilities >> kIpcLock & 1) != 0);
  host.set("kernel_command_line", system.line("/proc/cmdline"));
}

/// Folders as in base/resource_limits.h, of the examined system.
std::vector<std::string> folders_of(const System& system, const std::string& controller) {
  return cgroup_folders(controller, [&](const std::string& path) { return system.text(path); });
}

/// The smallest value of a limit on the way to the root.
class Smallest {
 public:
  void add(uint64_t value, const std::string& file) {
    if (value < value_) {
      value_ = value;
      file_ = printable(file);
    }
  }
  void report(const char* what, const std::string& text, Machine& machine) const {
    if (file_.empty()) return;
    Facts& limit = machine.cgroup_limits.emplace_back();
    limit.set("what", what);
    limit.set("value", value_);
    limit.set("file", file_);
    limit.set("text", text);
  }
  uint64_t value() const { return value_; }

 private:
  // The first hierarchy writes "no limit" as the largest multiple of a page.
  uint64_t value_ = uint64_t{1} << 62;
  std::string file_;
};

Smallest smallest(const System& system, const std::string& controller, const std::vector<std::string>& names) {
  Smallest least;
  for (const std::string& folder : folders_of(system, controller)) {
    for (const std::string& name : names) {
      // A file that does not exist has no number: the names of both hierarchies are tried one after the other.
      const std::string file = fmt::format("{}/{}", folder, name);
      if (const std::optional<uint64_t> value = system.number(file)) least.add(*value, file);
    }
  }
  return least;
}

/// "200000 100000": so many microseconds of cpu in each period.
Smallest smallest_cpu_percent(const System& system) {
  Smallest least;
  for (const std::string& folder : folders_of(system, "cpu")) {
    std::string file = folder + "/cpu.max";
    std::vector<std::string> words = words_of(system.line(file));
    if (words.empty()) {
      // The older hierarchy has two files in place of one. Its "-1" is no number here, and so no limit.
      file = folder + "/cpu.cfs_quota_us";
      words = {system.line(file), system.line(folder + "/cpu.cfs_period_us")};
    }
    if (words.size() != 2) continue;
    const std::optional<uint64_t> quota = number_of(words[0]), period = number_of(words[1]);
    // The quota is bounded, so that the product cannot overflow.
    if (!quota || !period || *period == 0 || *quota > (uint64_t{1} << 40)) continue;
    least.add(*quota * 100 / *period, file);
  }
  return least;
}

/// "mlx5_0 hca_handle=2 hca_object=max".
void read_rdma_max(const System& system, const std::string& file, Machine& machine) {
  // A context is a handle, each queue pair, completion queue, region a few objects: less is no exchange.
  constexpr uint64_t kFewHandles = 4, kFewObjects = 200;
  for (const std::string& line : lines_of(system.text(file))) {
    const std::vector<std::string> words = words_of(line);
    const bool known = !words.empty() && std::any_of(machine.rdma_devices.begin(), machine.rdma_devices.end(),
                                                     [&](const Facts& device) { return device["name"] == words[0]; });
    if (!known) continue;
    for (const std::string& word : words) {
      const size_t equals = word.find('=');
      const std::optional<uint64_t> count =
          equals == std::string::npos ? std::nullopt : number_of(word.substr(equals + 1));
      if (!count) continue;  // "max"
      const bool handles = word.compare(0, 10, "hca_handle") == 0;
      const bool few = *count < (handles ? kFewHandles : kFewObjects);
      Facts& limit = machine.rdma_limits.emplace_back();
      limit.set("file", printable(file));
      limit.set("line", printable(line));
      limit.set("device", words[0]);
      limit.set("what", handles ? "handles" : "objects");
      limit.set("count", *count);
      limit.set_if("few", few);
      if (few) machine.host.set("few_rdma_objects", "yes");
    }
  }
}

}  // namespace

void read_host(const System& system, Machine& machine) {
  read_system(system, machine.host);
  read_nodes(system, machine.host);
  read_pages(system, machine.host);
  read_governors(system, machine.host);
  read_process(system, machine.host);
}

void read_cgroups(const System& system, Machine& machine) {
  // Each folder on the way to the root can hold a limit, and all of them apply.
  if (!machine.rdma_devices.empty())
    for (const std::string& folder : folders_of(system, "rdma")) read_rdma_max(system, folder + "/rdma.max", machine);
  const Smallest memory = smallest(system, "memory", {"memory.max", "memory.high", "memory.limit_in_bytes"});
  memory.report("memory", size_text(memory.value()), machine);
  const Smallest cpu = smallest_cpu_percent(system);
  cpu.report("cpu", fmt::format("{} % of one cpu", cpu.value()), machine);
  const Smallest tasks = smallest(system, "pids", {"pids.max"});
  tasks.report("pids", fmt::format("{} threads", tasks.value()), machine);
  machine.host.set_if("cgroup_limits", !machine.cgroup_limits.empty());
}

Machine read_machine(const System& system) {
  Machine machine;
  const std::vector<PciDevice> functions = read_pci_devices(system);
  read_host(system, machine);
  read_rdma(system, functions, machine);
  read_gpus(system, functions, machine);
  read_pci(system, functions, machine);
  read_libraries(system, machine);
  read_cgroups(system, machine);
  return machine;
}

}  // namespace gradrail::tools::doctor
