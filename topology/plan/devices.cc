#include "topology/plan/devices.h"

#include <algorithm>
#include <map>

#include "fmt/format.h"

namespace gradrail::topology::planning {
namespace {

std::vector<ProcessRequest> of_job(const Request& request, Job job) {
  std::vector<ProcessRequest> processes;
  for (const ProcessRequest& process : request.processes)
    if (process.job == job) processes.push_back(process);
  // Sorted by task: each process of a host then computes the same plan, even if the orders of their lists differ.
  std::sort(processes.begin(), processes.end(),
            [](const ProcessRequest& a, const ProcessRequest& b) { return a.task_index < b.task_index; });
  return processes;
}

/// Number of GPUs of each worker: workers that name a number get theirs first, the remaining ones are assigned evenly.
std::vector<int> gpu_shares(const std::vector<ProcessRequest>& workers, int gpus) {
  std::vector<int> shares;
  int open = 0;
  for (const ProcessRequest& worker : workers) {
    // min() keeps the rest at 0 or more: deal_gpus() handles more towers than GPUs.
    shares.push_back(std::min(worker.units, gpus));
    gpus -= shares.back();
    open += worker.units == 0;
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].units != 0) continue;
    // Rounded up: the first workers have the remainder, in every process's plan.
    shares[i] = (gpus + open - 1) / open;
    gpus -= shares[i];
    --open;
  }
  return shares;
}

/// " (gpu0: there is no code for AMD GPUs)"; "": all GPUs of the machine can be used.
std::string why_others_are_out(const Machine& machine, const AvailableResources& available) {
  if (machine.gpus.empty()) return " (this machine has no GPU)";
  std::map<std::string, std::string> names;  // names by reason
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    std::string& list = names[available.gpu_out[i]];
    list += (list.empty() ? "" : ", ") + machine.gpus[i].name;
  }
  std::string text;
  for (const auto& [why, list] : names)
    if (!why.empty()) text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", list, why);
  return text.empty() ? "" : fmt::format(" ({})", text);
}

}  // namespace

absl::Status deal_gpus(const Machine& machine, const Request& request, const AvailableResources& available,
                       Placement& placement) {
  const std::vector<ProcessRequest> workers = of_job(request, Job::worker);
  const std::vector<int> shares = gpu_shares(workers, static_cast<int>(available.gpus.size()));
  size_t next = 0;
  int without = 0;
  for (size_t i = 0; i < workers.size(); ++i) {
    // A worker without a number and without a GPU still has one tower, on CPUs.
    const int towers = workers[i].units > 0 ? workers[i].units : std::max(shares[i], 1);
    for (int tower = 0; tower < towers; ++tower) {
      placement.towers.push_back({.task_index = workers[i].task_index, .tower = tower});
      if (tower < shares[i]) {
        placement.towers.back().gpu = available.gpus[next++];
      } else {
        ++without;
      }
    }
  }
  if (without > 0 && request.towers == Towers::gpu) {
    return absl::InvalidArgumentError(
        fmt::format("{} towers were to be on GPUs, and {} can be used{}: ask for fewer towers, or allow CPUs",
                    placement.towers.size(), available.gpus.size(), why_others_are_out(machine, available)));
  }
  // This is a note and not an error: without it a user would search elsewhere for the reason of a slow run.
  if (without > 0 && request.towers == Towers::automatic) {
    const std::string of = fmt::format("{} of {} towers on the CPU: ", without, placement.towers.size());
    placement.notes.push_back(of + (available.gpus.empty()
                                        ? "no GPU that can be used"
                                        : fmt::format("there is a GPU for {}", available.gpus.size())));
  }
  for (const ProcessRequest& ps : of_job(request, Job::ps))
    for (int shard = 0; shard < ps.units; ++shard)
      placement.shards.push_back({.task_index = ps.task_index, .shard = shard});
  return absl::OkStatus();
}

std::vector<Locality> tower_localities(const Machine& machine, const std::vector<Pool>& pools,
                                       const Placement& placement) {
  std::vector<Locality> localities(placement.towers.size());
  std::vector<int> guests(pools.size());
  size_t open = 0;
  for (size_t t = 0; t < localities.size(); ++t) {
    if (placement.towers[t].gpu >= 0) localities[t] = locality_of(machine, machine.gpus[placement.towers[t].gpu].place);
    localities[t].feeds_gpu = localities[t].numa_node >= 0 || localities[t].package >= 0;
    if (!localities[t].feeds_gpu)
      ++open;
    else
      for (size_t p = 0; p < pools.size(); ++p) guests[p] += distance(pools[p], localities[t]) == 0;
  }
  // The number for each pool is first, then the assignment: neighbors of one worker then stay together.
  std::vector<int> quota(pools.size());
  // The package first: nodes of one package share its NICs and its memory bandwidth.
  std::map<int, std::pair<size_t, int>> packages;  // cores and guests
  for (size_t p = 0; p < pools.size(); ++p) {
    packages[pools[p].package].first += pools[p].cores.size();
    packages[pools[p].package].second += guests[p];
  }
  // The cores that one more tower would have there. Towers beside their GPU count as guests already.
  const auto share = [](size_t cores, int towers) { return static_cast<double>(cores) / (towers + 1); };
  const auto merit = [&](size_t p) {
    const auto& [cores, towers] = packages[pools[p].package];
    return std::pair(share(cores, towers), share(pools[p].cores.size(), guests[p]));
  };
  for (; open > 0; --open) {
    size_t best = 0;
    for (size_t p = 1; p < pools.size(); ++p)
      if (merit(p) > merit(best)) best = p;
    ++packages[pools[best].package].second;
    ++guests[best];
    ++quota[best];
  }
  size_t p = 0;
  for (Locality& locality : localities) {
    if (locality.numa_node >= 0 || locality.package >= 0) continue;
    // The quotas add up to the number of these towers, so that p stays in range.
    while (quota[p] == 0) ++p;
    --quota[p];
    locality.numa_node = pools[p].numa_node;
    locality.package = pools[p].package;
  }
  return localities;
}

void follow_cores(const std::vector<Pool>& pools, const Placement& placement, std::vector<Locality>& towers) {
  for (size_t t = 0; t < towers.size(); ++t) {
    if (towers[t].feeds_gpu) continue;
    const CpuSet cpus = placement.towers[t].compute | placement.towers[t].progress;
    const Pool* most = nullptr;
    bool one_package = true, one_node = true;
    for (const Pool& pool : pools) {
      if (!pool.cpus.intersects(cpus)) continue;
      if (most == nullptr) most = &pool;
      one_package = one_package && pool.package == most->package;
      one_node = one_node && &pool == most;
      if ((pool.cpus & cpus).count() > (most->cpus & cpus).count()) most = &pool;
    }
    // Threads that share the cpus of several nodes run on any of them. Threads with separate cores do not move.
    const bool moves = placement.oversubscribed;
    towers[t].numa_node = moves && !one_node ? -1 : most->numa_node;
    towers[t].package = moves && !one_package ? -1 : most->package;
  }
}

}  // namespace gradrail::topology::planning
