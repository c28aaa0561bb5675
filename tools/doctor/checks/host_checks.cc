#include "tools/doctor/checks/host_checks.h"

#include <algorithm>
#include <map>

#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tools/doctor/text.h"
#include "topology/discover/discover.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kNodes = "/sys/devices/system/node";
constexpr const char* kCpus = "/sys/devices/system/cpu";

/// Names like node0 and cpu12, and not nodes or cpufreq.
std::vector<std::string> numbered(Tree& tree, const std::string& folder, std::string_view prefix) {
  std::vector<std::string> found;
  for (const std::string& name : tree.names(folder))
    if (name.compare(0, prefix.size(), prefix) == 0 && number_of(name.substr(prefix.size()))) found.push_back(name);
  return found;
}

absl::StatusOr<std::string> probe_hwloc() {
  GRADRAIL_ASSIGN_OR_RETURN(const topology::Machine machine, topology::discover());
  return fmt::format("{} packages, {} NUMA nodes, {} cores, {} GPUs, {} NICs", machine.packages.size(),
                     machine.numa_nodes.size(), machine.cores.size(), machine.gpus.size(), machine.nics.size());
}

/// Distances that are all equal between several nodes were made up by a firmware that does not know.
Finding look_at_distances(Tree& tree) {
  const std::vector<std::string> nodes = numbered(tree, kNodes, "node");
  const std::string where = fmt::format("{}/node*/distance", kNodes);
  if (nodes.size() < 2) return {State::ok, fmt::format("{}: {} NUMA node", kNodes, nodes.size())};
  bool differ = false;
  for (const std::string& node : nodes) {
    const std::vector<std::string> distances = words_of(tree.line(fmt::format("{}/{}/distance", kNodes, node)));
    // distances is empty if the file cannot be read; then the loop has no element to compare with front().
    for (const std::string& each : distances) differ = differ || each != distances.front();
  }
  if (differ) return {State::ok, fmt::format("{} NUMA nodes, distances in {}", nodes.size(), where)};
  return {State::warning, fmt::format("{} NUMA nodes, all distances equal or missing in {}", nodes.size(), where),
          "near and far memory cannot be distinguished",
          "numactl --hardware; newer firmware, NUMA (SRAT, SLIT) switched on"};
}

}  // namespace

Check check_kernel(System& system) {
  const char* const file = "/proc/sys/kernel/osrelease";
  const std::string release = system.tree().line(file);
  const std::optional<Version> version = version_of(release);
  if (!version) {
    return conclude(topic::kHost, "kernel",
                    {{State::unknown, fmt::format("{}: '{}'", file, release),
                      "which RDMA interfaces there are is not known", "uname -r"}});
  }
  // The limit of kDmaBufKernel in gpu_checks.cc; this check also runs on hosts without a GPU.
  if (*version < Version{5, 12, 0}) {
    return conclude(topic::kHost, "kernel",
                    {{State::warning, fmt::format("{}: {}, older than 5.12", file, release),
                      "no dma-buf for RDMA: GPU memory reaches a NIC by the peer-memory module alone",
                      "a kernel from 5.12 on: sudo apt install linux-image-amd64 of a newer release "
                      "(docs.kernel.org/driver-api/dma-buf.html)"}});
  }
  return conclude(topic::kHost, "kernel", {{State::ok, fmt::format("{}: {}", file, release)}});
}

Check check_topology(System& system) {
  std::vector<Finding> findings = {look_at_distances(system.tree())};
  const absl::StatusOr<std::string> found = system.observe("hwloc", probe_hwloc);
  if (found.ok()) {
    findings.push_back({State::ok, fmt::format("hwloc: {}", printable(trimmed(*found)))});
  } else if (absl::IsNotFound(found.status())) {
    findings.push_back({State::unknown, fmt::format("hwloc: {}", message_of(found.status())),
                        "where tasks would be bound is not known", "lstopo; gradrail topo"});
  } else {
    findings.push_back({State::broken, fmt::format("hwloc: {}", message_of(found.status())),
                        "nothing is bound to cores, and no NIC is chosen for a GPU",
                        "lstopo says more; /sys must be mounted: docker run -v /sys:/sys:ro"});
  }
  return conclude(topic::kHost, "topology", std::move(findings));
}

Check check_numa_balancing(System& system) {
  const char* const file = "/proc/sys/kernel/numa_balancing";
  const std::string value = system.tree().line(file);
  if (value.empty()) return not_applicable(topic::kHost, "numa-balancing", fmt::format("no {}", file));
  const size_t nodes = numbered(system.tree(), kNodes, "node").size();
  const std::string what = fmt::format("{}: {}, {} NUMA nodes", file, value, nodes);
  // On one node there is no other node to move a page to, and the kernel does not scan.
  if (value == "0" || nodes < 2) return conclude(topic::kHost, "numa-balancing", {{State::ok, what}});
  return conclude(
      topic::kHost, "numa-balancing",
      {{State::warning, what,
        "the kernel unmaps pages to see which threads use them: pauses of milliseconds, and pinned pages that GPUs and "
        "NICs use do not move anyway",
        "sudo sysctl kernel.numa_balancing=0; for good in /etc/sysctl.d/90-gradrail.conf"}});
}

Check check_hugepages(System& system) {
  Tree& tree = system.tree();
  const std::string pools = "/sys/kernel/mm/hugepages";
  const std::string transparent = "/sys/kernel/mm/transparent_hugepage/enabled";
  std::vector<std::string> seen;
  uint64_t reserved = 0;
  for (const std::string& pool : tree.names(pools)) {
    const uint64_t count = tree.number(fmt::format("{}/{}/nr_hugepages", pools, pool)).value_or(0);
    reserved += count;
    if (count > 0) seen.push_back(fmt::format("{} of {}", count, printable(pool)));
  }
  const std::string word = tree.line(transparent);
  const std::string what = fmt::format("{}: {}; {}: {}", transparent, word.empty() ? "not there" : word, pools,
                                       seen.empty() ? "none reserved" : fmt::format("{}", fmt::join(seen, ", ")));
  // The word in brackets is the active one. Either permits huge pages where a task asks for them (madvise).
  if (reserved > 0 || word.find("[always]") != std::string::npos || word.find("[madvise]") != std::string::npos)
    return conclude(topic::kHost, "hugepages", {{State::ok, what}});
  return conclude(topic::kHost, "hugepages",
                  {{State::warning, what, "memory comes in pages of 4 KiB: NICs translate more addresses, slowly",
                    "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"}});
}

Check check_governor(System& system) {
  Tree& tree = system.tree();
  std::map<std::string, int> count;
  std::string first;
  for (const std::string& cpu : numbered(tree, kCpus, "cpu")) {
    const std::string file = fmt::format("{}/{}/cpufreq/scaling_governor", kCpus, cpu);
    const std::string governor = tree.line(file);
    if (governor.empty()) continue;
    // One example is enough as evidence; the counts have the rest.
    // "performance" is the governor that keeps the clock up while a core waits.
    if (governor != "performance" && first.empty()) first = file;
    ++count[governor];
  }
  if (count.empty())
    return not_applicable(topic::kHost, "cpu-governor", fmt::format("no {}/cpu*/cpufreq (a virtual machine?)", kCpus));
  std::vector<std::string> counts;
  for (const auto& [governor, cpus] : count) counts.push_back(fmt::format("{} on {} cpus", governor, cpus));
  const std::string what = fmt::format("{}", fmt::join(counts, ", "));
  if (first.empty())
    return conclude(topic::kHost, "cpu-governor", {{State::ok, fmt::format("{} in {}/cpu*/cpufreq", what, kCpus)}});
  return conclude(topic::kHost, "cpu-governor",
                  {{State::warning, fmt::format("{}: {}", first, what),
                    "cores that waited are slow when data arrive: longer and unsteady latencies",
                    "sudo cpupower frequency-set -g performance"}});
}

std::vector<Check> check_host(System& system, const std::vector<RdmaDevice>& devices) {
  return {check_kernel(system),       check_topology(system), check_numa_balancing(system),
          check_hugepages(system),    check_governor(system), check_cgroup_rdma(system, devices),
          check_cgroup_limits(system)};
}

}  // namespace gradrail::tools::doctor
