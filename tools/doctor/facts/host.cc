// The system, pages, clocks, and the limits of this process.
#include <map>

#include "base/resource_limits.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tools/doctor/facts/read.h"

namespace gradrail::tools::doctor {
namespace {

/// Entries with numbered names such as node0 and cpu12, and not nodes or cpufreq.
std::vector<std::string> numbered(const System& system, const std::string& folder, std::string_view prefix) {
  std::vector<std::string> found;
  for (const std::string& name : system.names(folder))
    if (name.starts_with(prefix) && number_of(name.substr(prefix.size()))) found.push_back(name);
  return found;
}

/// The rest of the first line that begins with `name`.
std::string field(const System& system, const std::string& path, std::string_view name) {
  for (const std::string& line : lines_of(system.text(path)))
    if (line.starts_with(name)) return std::string(trimmed(line.substr(name.size())));
  return "";
}

void read_system(const System& system, Facts& host) {
  host.set("hostname", system.line("/proc/sys/kernel/hostname"));
  std::string distribution = printable(field(system, "/etc/os-release", "PRETTY_NAME="));
  std::erase(distribution, '"');
  host.set("distribution", distribution);
  host.set("kernel", system.line("/proc/sys/kernel/osrelease"));
  // arm64 has no such line.
  const std::string processor = field(system, "/proc/cpuinfo", "model name");
  host.set("processor", printable(trimmed(processor.substr(processor.find(':') + 1))));
  host.set("kernel_command_line", system.line("/proc/cmdline"));
}

void read_pages(const System& system, Facts& host) {
  host.set("numa_nodes", numbered(system, "/sys/devices/system/node", "node").size());
  host.set("numa_balancing", system.line("/proc/sys/kernel/numa_balancing"));
  // The word in brackets is the active one.
  const std::string word = system.line("/sys/kernel/mm/transparent_hugepage/enabled");
  host.set("hugepages", word);
  host.set_if("hugepages_on_request",
              word.find("[always]") != std::string::npos || word.find("[madvise]") != std::string::npos);
}

void read_governors(const System& system, Facts& host) {
  std::map<std::string, int> count;
  std::string slow;
  for (const std::string& cpu : numbered(system, "/sys/devices/system/cpu", "cpu")) {
    const std::string file = fmt::format("/sys/devices/system/cpu/{}/cpufreq/scaling_governor", cpu);
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

void read_memlock(const System& system, Facts& host) {
  // The soft limit is the first number, and the one that applies: no part of this program raises it.
  const std::vector<std::string> words = words_of(field(system, "/proc/self/limits", "Max locked memory"));
  const std::optional<uint64_t> bytes = words.empty() ? std::nullopt : number_of(words[0]);
  host.set("memlock", bytes ? std::to_string(*bytes) : !words.empty() && words[0] == "unlimited" ? words[0] : "");
  host.set("memlock_text", bytes ? size_text(*bytes) : "");
  constexpr int kIpcLock = 14;  // linux/capability.h
  const std::optional<uint64_t> capabilities = number_of(field(system, "/proc/self/status", "CapEff:"), 16);
  host.set_if("may_lock", capabilities && (*capabilities >> kIpcLock & 1) != 0);
}

/// "200000 100000": so many microseconds of cpu in each period.
void read_cpu_limit(const System& system, const SystemFiles& files, Facts& host) {
  for (const std::string& folder : cgroup_folders("cpu", files)) {
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
    const uint64_t percent = *quota * 100 / *period;
    if (host.has("cpu_percent") && percent >= *host.number("cpu_percent")) continue;
    host.set("cpu_percent", percent);
    host.set("cpu_file", file);
  }
}

void read_limits(const System& system, Facts& host) {
  const SystemFiles files = [&](const std::string& path) { return system.text(path); };
  if (const std::optional<Rest> rest = available_memory(1, files)) {
    host.set("memory_left", rest->amount);
    host.set("memory_left_text", fmt::format("{} of memory are left: {}", size_text(rest->amount), rest->text));
  }
  if (const std::optional<Rest> rest = available_tasks(files)) {
    host.set("tasks_left", rest->amount);
    host.set("tasks_left_text", fmt::format("{} threads are left: {}", rest->amount, rest->text));
  }
  read_cpu_limit(system, files, host);
}

}  // namespace

void read_host(const System& system, Machine& machine) {
  read_system(system, machine.host);
  read_pages(system, machine.host);
  read_governors(system, machine.host);
  read_memlock(system, machine.host);
  read_limits(system, machine.host);
}

Machine read_machine(const System& system) {
  Machine machine;
  const std::vector<PciDevice> functions = read_pci_devices(system);
  read_host(system, machine);
  read_rdma(system, functions, machine);
  read_gpus(system, functions, machine);
  read_pci(system, functions, machine);
  return machine;
}

}  // namespace gradrail::tools::doctor
