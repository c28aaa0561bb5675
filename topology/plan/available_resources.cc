#include "topology/plan/available_resources.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::topology::planning {
namespace {

/// More threads than any host has cpus to run: a bound against slips of the keyboard, and on the planner's time.
constexpr int kMostUnits = 4096;

const char* to_word(Job job) { return job == Job::ps ? "ps" : "worker"; }

CpuSet to_set(const std::vector<int>& cpus) {
  CpuSet set;
  for (const int cpu : cpus) set.insert(cpu);
  return set;
}

absl::Status read_cpus(const Machine& machine, const Request& request, AvailableResources& available) {
  CpuSet all, open;
  for (const Core& core : machine.cores) {
    all = all | to_set(core.cpus);
    open = open | to_set(core.allowed);
  }
  // The set is stored only for the text of the plan: a reader must find why a cpu was left out.
  available.closed = all - open;
  if (request.cores) {
    // Two errors with different remedies: a typing mistake, or a launcher that bound the process.
    const CpuSet missing = *request.cores - all;
    const CpuSet closed = *request.cores & available.closed;
    if (!missing.empty()) {
      return absl::InvalidArgumentError(fmt::format("--cores {}: this machine has no cpu {}; it has {}",
                                                    request.cores->to_string(), missing.to_string(), all.to_string()));
    }
    if (!closed.empty()) {
      return absl::InvalidArgumentError(
          fmt::format("--cores {}: this process may not run on {} (cgroup or taskset); it may on {}",
                      request.cores->to_string(), closed.to_string(), open.to_string()));
    }
    available.outside = open - *request.cores;
  }
  // Only cpus that would be used otherwise count: a reserved cpu that is closed anyway must not appear twice in the
  // explanation.
  available.reserved = (open - available.outside) & request.reserved;
  available.cpus = open - available.outside - available.reserved;
  if (!available.cpus.empty()) return absl::OkStatus();
  if (open.empty()) return absl::InvalidArgumentError("no cpu of this machine is open to this process");
  if (available.reserved.empty()) return absl::InvalidArgumentError("--cores names no cpu: nothing could run");
  return absl::InvalidArgumentError(
      fmt::format("--reserve {} leaves none of the cpus {}: reserve fewer, or name more with --cores",
                  request.reserved.to_string(), (open - available.outside).to_string()));
}

absl::Status read_gpus(const Machine& machine, const Request& request, AvailableResources& available) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<int> named, find_gpus(machine, request.gpus));
  available.gpu_out.assign(machine.gpus.size(), "");
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    const bool wanted = std::find(named.begin(), named.end(), static_cast<int>(i)) != named.end();
    if (!request.gpus.empty() && !wanted) available.gpu_out[i] = "not among those of --gpu";
    // Later reasons overwrite earlier ones: a GPU that could never be used has that reason, named or not.
    if (machine.gpus[i].vendor == Vendor::nvidia) continue;
    available.gpu_out[i] = why_unsupported(machine.gpus[i].vendor);
    if (!request.gpus.empty() && wanted) {
      return absl::InvalidArgumentError(fmt::format("--gpu: {} at {} cannot be used: {}", machine.gpus[i].name,
                                                    machine.gpus[i].place.address.to_string(), available.gpu_out[i]));
    }
  }
  for (const Vendor vendor : {Vendor::amd, Vendor::intel, Vendor::other}) {
    std::string names, why;
    for (size_t i = 0; i < machine.gpus.size() && request.towers != Towers::cpu; ++i) {
      if (machine.gpus[i].vendor != vendor) continue;
      names += (names.empty() ? "" : ", ") + machine.gpus[i].name;
      why = available.gpu_out[i];
    }
    if (!names.empty()) available.notes.push_back(fmt::format("GPUs are not used: {}: {}", names, why));
  }
  if (request.towers == Towers::cpu) {
    for (std::string& why : available.gpu_out)
      if (why.empty()) why = "towers on CPUs were asked for";
    if (!request.gpus.empty()) available.notes.push_back("--gpu has no effect: towers on CPUs were asked for");
    return absl::OkStatus();
  }
  // The order is that of the flag, and repeated GPUs stay: both are the user's choice.
  if (!request.gpus.empty()) available.gpus = named;
  for (size_t i = 0; i < machine.gpus.size() && request.gpus.empty(); ++i)
    if (available.gpu_out[i].empty()) available.gpus.push_back(static_cast<int>(i));
  return absl::OkStatus();
}

std::string ports_of(const Nic& nic) {
  std::string text;
  for (const NicPort& port : nic.ports) {
    text += fmt::format("{}port {} is {}", text.empty() ? "" : ", ", port.number, to_string(port.state));
  }
  return text;
}

absl::Status read_nics(const Machine& machine, const Request& request, AvailableResources& available) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<int> named, find_nics(machine, request.nics));
  size_t left = 0;
  for (size_t i = 0; i < machine.nics.size(); ++i) {
    const Nic& nic = machine.nics[i];
    const bool wanted =
        request.nics.empty() || std::find(named.begin(), named.end(), static_cast<int>(i)) != named.end();
    std::string why;
    if (!nic.usable()) why = ports_of(nic);
    if (request.rdma_only && !nic.rdma) why = "plain Ethernet, and only RDMA was asked for";
    if (!wanted) why = "not among those of --nic";
    // A note for RDMA devices only: a host has many Ethernet ports without a cable.
    if (!nic.usable() && nic.rdma && wanted) {
      available.notes.push_back(fmt::format("NIC {} is not used: {}", nic.name, why));
    }
    left += why.empty();
    available.nic_out.push_back(std::move(why));
    available.nic_gbit.push_back(usable_gbit(nic));
    if (available.nic_out.back().empty())
      available.fastest_gbit = std::max(available.fastest_gbit, available.nic_gbit.back());
  }
  // Nothing is recorded against them: files of hwloc have no rates of ports, and of some devices no PCI link.
  for (int& gbit : available.nic_gbit)
    if (gbit == 0) gbit = available.fastest_gbit;
  if (left > 0 || machine.nics.empty()) return absl::OkStatus();
  std::string all;
  for (size_t i = 0; i < machine.nics.size(); ++i) {
    all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", machine.nics[i].name, available.nic_out[i]);
  }
  // A note and no error: tasks of one host exchange through shared memory.
  available.notes.push_back(fmt::format("no NIC can be used ({})", all));
  return absl::OkStatus();
}

}  // namespace

std::string why_unsupported(Vendor vendor) {
  const char* const platform = vendor == Vendor::amd     ? " (ROCm is not supported)"
                               : vendor == Vendor::intel ? " (Level Zero is not supported)"
                                                         : "";
  return fmt::format("there is no code for {} GPUs{}", vendor == Vendor::other ? "this vendor's" : to_string(vendor),
                     platform);
}

int usable_gbit(const Nic& nic) {
  double port_gbit = 0;
  for (const NicPort& port : nic.ports)
    if (port.state == PortState::active || port.state == PortState::unknown)
      port_gbit = std::max(port_gbit, port.gbit_per_s);
  const double pci_gbit = 8 * nic.pci_gbyte_per_s;
  const double gbit = port_gbit > 0 && pci_gbit > 0 ? std::min(port_gbit, pci_gbit) : std::max(port_gbit, pci_gbit);
  // A slow NIC does not become an unknown one.
  return gbit > 0 ? std::max(static_cast<int>(std::lround(gbit)), 1) : 0;
}

absl::Status check_request(const Request& request) {
  std::set<std::pair<Job, int>> seen;
  int64_t units = 0;
  for (const ProcessRequest& process : request.processes) {
    const std::string task = fmt::format("{} {}", to_word(process.job), process.task_index);
    if (process.task_index < 0) return absl::InvalidArgumentError(fmt::format("{}: tasks count from 0", task));
    if (!seen.emplace(process.job, process.task_index).second) {
      return absl::InvalidArgumentError(fmt::format("{} is listed twice on this host", task));
    }
    if (process.units < 0 || process.units > kMostUnits || (process.job == Job::ps && process.units == 0)) {
      return absl::InvalidArgumentError(fmt::format("{}: {} {}: 1 to {} would be right", task, process.units,
                                                    process.job == Job::ps ? "shards" : "towers", kMostUnits));
    }
    units += std::max(process.units, 1);
  }
  if (units > kMostUnits) {
    return absl::InvalidArgumentError(
        fmt::format("{} towers and shards on one host: {} at most, so that they can be planned", units, kMostUnits));
  }
  if (request.other_threads < 0 || request.other_threads > CpuSet::kMaxCpu) {
    return absl::InvalidArgumentError(fmt::format("{} other threads: 0 to {}", request.other_threads, CpuSet::kMaxCpu));
  }
  if (request.cores_per_tower < 0 || request.cores_per_tower > CpuSet::kMaxCpu) {
    return absl::InvalidArgumentError(
        fmt::format("{} cores per tower: 0 (an even share) to {}", request.cores_per_tower, CpuSet::kMaxCpu));
  }
  return absl::OkStatus();
}

absl::StatusOr<AvailableResources> read_available_resources(const Machine& machine, const Request& request) {
  AvailableResources available;
  for (const auto read : {read_cpus, read_gpus, read_nics}) GRADRAIL_RETURN_IF_ERROR(read(machine, request, available));
  return available;
}

}  // namespace gradrail::topology::planning
