// Limits of this process's cgroups: its own and all above it count.
#include <algorithm>

#include "base/resource_limits.h"
#include "fmt/format.h"
#include "tools/doctor/checks/host_checks.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

/// Those of base/resource_limits.h, on a machine that may be recorded.
std::vector<std::string> folders_of(Tree& tree, const std::string& controller) {
  return cgroup_folders(controller, [&](const std::string& path) { return tree.read(path).text; });
}

struct Limit {
  uint64_t value = 0;
  std::string file;
};

/// The smallest of a limit's values on the way up; none: unlimited.
std::optional<Limit> smallest(Tree& tree, const std::string& controller, const std::vector<std::string>& names) {
  // The first hierarchy writes "no limit" as the largest multiple of a page.
  constexpr uint64_t kNoLimit = uint64_t{1} << 62;
  std::optional<Limit> least;
  // A file that does not exist has no number: the names of both hierarchies can be tried one after the other.
  for (const std::string& folder : folders_of(tree, controller)) {
    for (const std::string& name : names) {
      const std::string file = fmt::format("{}/{}", folder, name);
      const std::optional<uint64_t> value = tree.number(file);
      if (value && *value < kNoLimit && (!least || *value < least->value)) least = Limit{*value, printable(file)};
    }
  }
  return least;
}

/// "200000 100000": so many microseconds of cpu in each period.
std::optional<Limit> smallest_cpu_percent(Tree& tree) {
  std::optional<Limit> least;
  for (const std::string& folder : folders_of(tree, "cpu")) {
    std::vector<std::string> words = words_of(tree.line(folder + "/cpu.max"));
    std::string file = folder + "/cpu.max";
    if (words.empty()) {
      // The older hierarchy has two files in place of one. Its "-1" is no number here, and so no limit.
      file = folder + "/cpu.cfs_quota_us";
      words = {tree.line(file), tree.line(folder + "/cpu.cfs_period_us")};
    }
    if (words.size() != 2) continue;
    const std::optional<uint64_t> quota = number_of(words[0]), period = number_of(words[1]);
    if (!quota || !period || *period == 0 || *quota > (uint64_t{1} << 40)) continue;
    // The quota is bounded above, so that this product cannot overflow.
    const uint64_t percent = *quota * 100 / *period;
    if (!least || percent < least->value) least = Limit{percent, printable(file)};
  }
  return least;
}

/// "mlx5_0 hca_handle=2 hca_object=max".
std::vector<Finding> look_at_rdma_max(Tree& tree, const std::string& file, const std::vector<RdmaDevice>& devices) {
  // A context is a handle, each queue pair, completion queue, region a few objects: less is no exchange.
  constexpr uint64_t kFewHandles = 4, kFewObjects = 200;
  std::vector<Finding> findings;
  for (const std::string& line : lines_of(tree.read(file).text)) {
    const std::vector<std::string> words = words_of(line);
    const bool known = !words.empty() && std::any_of(devices.begin(), devices.end(),
                                                     [&](const RdmaDevice& device) { return device.name == words[0]; });
    if (!known) continue;
    for (const std::string& word : words) {
      // Without '=' the position is 0, and the whole word is tried as a number; the test below skips it.
      const std::optional<uint64_t> count = number_of(word.substr(std::min(word.size(), word.find('=') + 1)));
      if (word.find('=') == std::string::npos || !count) continue;  // "max"
      const bool handles = word.compare(0, 10, "hca_handle") == 0;
      if (*count >= (handles ? kFewHandles : kFewObjects)) continue;
      findings.push_back(
          {*count == 0 ? State::broken : State::warning, fmt::format("{}: {}", printable(file), printable(line)),
           fmt::format("this cgroup may {} RDMA {} of {}", *count == 0 ? "open no" : "have only few",
                       handles ? "handles" : "objects", words[0]),
           fmt::format("echo '{} hca_handle=max hca_object=max' | sudo tee {}", words[0], printable(file))});
    }
  }
  return findings;
}

}  // namespace

Check check_cgroup_rdma(System& system, const std::vector<RdmaDevice>& devices) {
  const char* const name = "cgroup-rdma";
  if (devices.empty()) return not_applicable(topic::kHost, name, "no RDMA device");
  std::vector<Finding> findings;
  for (const std::string& folder : folders_of(system.tree(), "rdma")) {
    const std::string file = folder + "/rdma.max";
    // Each folder on the way to the root can hold a limit, and all of them apply.
    for (Finding& finding : look_at_rdma_max(system.tree(), file, devices)) findings.push_back(std::move(finding));
  }
  if (!findings.empty()) return conclude(topic::kHost, name, std::move(findings));
  return conclude(topic::kHost, name,
                  {{State::ok, "no limit in the rdma.max of this process's cgroups (/proc/self/cgroup)"}});
}

Check check_cgroup_limits(System& system) {
  // For scale: a model of 100 million parameters with Adam takes 1.2 GB at its ps; 2 GiB is no room for more.
  constexpr uint64_t kLittleMemory = uint64_t{2} << 30;
  constexpr uint64_t kFewTasks = 200;  // gRPC alone takes a dozen threads a process
  // Percent: two CPUs. A task has at least a thread that spins and one for gRPC.
  constexpr uint64_t kLittleCpu = 200;
  Tree& tree = system.tree();
  std::vector<Finding> findings;
  const auto add = [&](const std::optional<Limit>& limit, uint64_t few, const std::string& words,
                       const std::string& lost, const std::string& remedy) {
    if (!limit) return;
    const std::string what = fmt::format("{}: {}", limit->file, words);
    findings.push_back(limit->value < few ? Finding{State::warning, what, lost, remedy} : Finding{State::ok, what});
  };
  const std::optional<Limit> memory = smallest(tree, "memory", {"memory.max", "memory.high", "memory.limit_in_bytes"});
  add(memory, kLittleMemory, memory ? size_text(memory->value) : "",
      "parameters, slots and pinned memory of all tasks in it must fit, else they are killed",
      "docker run --memory 16g, MemoryMax= in the systemd unit, srun --mem");
  const std::optional<Limit> cpu = smallest_cpu_percent(tree);
  add(cpu, kLittleCpu, cpu ? fmt::format("{} % of one cpu", cpu->value) : "",
      "threads that spin use it up and are then stopped for the rest of each period: pauses of 50 ms and more",
      "docker run --cpus 4, CPUQuota= in the systemd unit; until then gradrail train --wait block");
  const std::optional<Limit> tasks = smallest(tree, "pids", {"pids.max"});
  add(tasks, kFewTasks, tasks ? fmt::format("{} threads", tasks->value) : "", "threads cannot be started",
      "docker run --pids-limit 4096, TasksMax= in the systemd unit");
  if (findings.empty())
    return conclude(topic::kHost, "cgroup-limits",
                    {{State::ok, "no limit on memory, cpu, threads (/proc/self/cgroup)"}});
  return conclude(topic::kHost, "cgroup-limits", std::move(findings));
}

}  // namespace gradrail::tools::doctor
