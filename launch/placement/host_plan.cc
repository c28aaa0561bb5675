#include "launch/placement/host_plan.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#include "base/log.h"
#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"
#include "launch/placement/gpu_choice.h"
#include "topology/discover/discover.h"
#include "topology/views/explain.h"

namespace gradrail::launch {
namespace {

using topology::Job;

/// Names of this very host are one host: people write them as they like.
std::string host_here(const std::string& address) {
  const std::string host = host_of(address);
  return is_loopback_host(host) ? "localhost" : host;
}

bool is_ps(const TaskOptions& options) { return options.task.job == "ps"; }

/// A worker beyond the list joined later: no other task's plan includes it.
bool is_unlisted(const TaskOptions& options) {
  return !options.local && !is_ps(options) && options.task.index >= options.cluster.workers.size();
}

std::vector<topology::ProcessRequest> local_processes(const TaskOptions& options) {
  std::vector<topology::ProcessRequest> processes;
  for (uint32_t i = 0; i < options.ps; ++i) {
    // The order is a part of the input: each task must ask for the same plan.
    processes.push_back({Job::ps, static_cast<int>(i), static_cast<int>(options.shards)});
  }
  for (uint32_t i = 0; i < options.workers; ++i)
    processes.push_back({Job::worker, static_cast<int>(i), static_cast<int>(options.towers)});
  return processes;
}

/// Every task that the cluster puts on our host. How many shards the other ps and towers the other
/// workers have is taken to be as with us. Us alone, where a launcher gave each task cpus of its own.
std::vector<topology::ProcessRequest> processes_here(const TaskOptions& options) {
  if (options.local) return local_processes(options);
  if (options.own_cpus) {
    const uint32_t units = is_ps(options) ? options.shards : options.towers;
    return {{is_ps(options) ? Job::ps : Job::worker, static_cast<int>(options.task.index), static_cast<int>(units)}};
  }
  const auto& workers = options.cluster.workers;
  // A worker beyond the list has no address of its own: the host of the last listed worker stands in.
  const std::string ours =
      host_here(is_ps(options) ? options.cluster.ps[options.task.index]
                               : workers[std::min<size_t>(options.task.index, workers.size() - 1)]);
  std::vector<topology::ProcessRequest> processes;
  for (size_t i = 0; i < options.cluster.ps.size(); ++i) {
    if (host_here(options.cluster.ps[i]) != ours) continue;
    processes.push_back({Job::ps, static_cast<int>(i), static_cast<int>(options.shards)});
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    if (host_here(workers[i]) == ours)
      processes.push_back({Job::worker, static_cast<int>(i), static_cast<int>(options.towers)});
  }
  if (is_unlisted(options))
    processes.push_back({Job::worker, static_cast<int>(options.task.index), static_cast<int>(options.towers)});
  return processes;
}

std::vector<topology::ProcessRequest> processes_with(const GpuChoice& gpus, const TaskOptions& options) {
  std::vector<topology::ProcessRequest> processes = processes_here(options);
  for (topology::ProcessRequest& process : processes) {
    // A launcher gave each worker its own GPUs: without --towers each of them gets a tower.
    if (gpus.own_count > 0 && process.job == Job::worker && process.units == 0) process.units = gpus.own_count;
  }
  return processes;
}

topology::Request request_of(const TaskOptions& options, const GpuChoice& gpus) {
  return {.processes = processes_with(gpus, options),
          .towers = gpus.towers,
          .other_threads = topology::kRestOfTheHost,
          .progress_threads = false,  // a worker's one thread computes and makes progress
          .reserved = options.reserved,
          .cores = options.cores,
          // A list of GPUs without towers on GPUs would be an error of the plan.
          .gpus = gpus.towers == topology::Towers::cpu ? std::vector<std::string>() : options.gpus,
          .nics = options.nics,
          .rdma_only = options.require_rdma};
}

// Flags that cannot be kept silently: with one of them a missing plan is an error, without them a warning.
bool asks_for_something(const TaskOptions& options) {
  return options.cores.has_value() || !options.reserved.empty() || !options.nics.empty() || !options.gpus.empty() ||
         options.no_soft_placement;
}

void warn(const std::string& why) {
  print_text(stderr, "gradrail: warning: {}: threads and memory stay unbound (--no-pin makes this explicit)\n", why);
}

/// Spinning threads of our host and nothing else known of it.
int busy_threads(const TaskOptions& options) {
  int count = 0;
  for (const topology::ProcessRequest& process : processes_here(options)) count += std::max(1, process.units);
  return count;
}

int core_count() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

std::string why_free(const TaskOptions& options) {
  if (options.no_pin) return "not bound (--no-pin)";
  if (!options.why_unbound.empty()) return options.why_unbound;
  if (is_unlisted(options)) return "not bound (beyond the cluster's list of workers: the plan has no place for it)";
  return "";
}

std::string why_table(const HostPlan& plan, const TaskOptions& options) {
  std::string text = topology::explain(plan.machine, plan.placement);
  const bool chosen = options.wait != "auto";
  text += fmt::format("waiting: {}: {}\n",
                      chosen                              ? options.wait
                      : wait_policy(plan, options).adapts ? "adapt"
                                                          : "spin",
                      chosen ? "--wait" : plan.placement.wait_reason);
  for (const std::string& note : plan.placement.notes) {
    // The line above has this note already.
    if (note != plan.placement.wait_reason) text += fmt::format("note: {}\n", note);
  }
  for (const std::string& note : plan.machine.notes) text += fmt::format("note: {}\n", note);
  return text;
}

template <typename Place>
UnitPlace unit(const HostPlan& plan, const TaskOptions& options, const std::string& name, const Place& place,
               const topology::CpuSet& cpus) {
  return {.name = name,
          .cpus = cpus,
          // A unit that may use all CPUs needs no binding: the call could only fail.
          .everywhere = cpus == plan.machine.allowed,
          .shared = plan.placement.oversubscribed,
          .numa_os_index = place.numa_node < 0 ? -1 : plan.machine.numa_nodes[place.numa_node].os_index,
          .nic = place.nic < 0 ? "" : plan.machine.nics[place.nic].name,
          .why_free = why_free(options)};
}

int ordinal_of(const HostPlan& plan, const topology::TowerPlace& tower) {
  return tower.gpu < 0 ? -1 : plan.machine.gpus[tower.gpu].index;
}

absl::StatusOr<HostPlan> make_plan(topology::Machine machine, const ProbedGpus& probed, const TaskOptions& options) {
  GRADRAIL_ASSIGN_OR_RETURN(const GpuChoice gpus, choose_gpus(options, probed, machine));
  GRADRAIL_ASSIGN_OR_RETURN(topology::Placement placement, topology::plan(machine, request_of(options, gpus)));
  HostPlan plan{.known = true,
                .machine = std::move(machine),
                .placement = std::move(placement),
                .task_cpus = {},
                .why_no_gpu = gpus.why_none,
                .gpu_driver_failed = probed.driver_failed};
  // After the plan: it changes towers that the planner has placed on CPUs.
  GRADRAIL_RETURN_IF_ERROR(finish_choice(gpus, options, plan.machine, plan.placement));
  return plan;
}

}  // namespace

std::string cpus_text(const topology::CpuSet& cpus) {
  return fmt::format("{} {}", cpus.count() == 1 ? "cpu" : "cpus", cpus.to_string());
}

absl::StatusOr<HostPlan> plan_host(const TaskOptions& options) {
  const ProbedGpus probed = probe_for(options);  // first: hwloc may wake the driver, and then no child can ask it
  absl::StatusOr<topology::Machine> machine = topology::discover();
  if (machine.ok() && !machine->live) {
    // A plan for another machine would bind threads to wrong cpus here.
    machine = absl::FailedPreconditionError(
        fmt::format("hwloc describes another machine ({}; unset HWLOC_XMLFILE and HWLOC_SYNTHETIC)", machine->source));
  }
  if (!machine.ok()) {
    if (asks_for_something(options)) {
      return absl::FailedPreconditionError(
          fmt::format("--cores, --reserve, --gpu, --nic and --no-soft-placement need the topology of this machine: {}",
                      message_of(machine.status())));
    }
    warn(std::string(message_of(machine.status())));
    return HostPlan{.why_no_gpu = "this machine could not be read"};
  }
  absl::StatusOr<HostPlan> plan = make_plan(*std::move(machine), probed, options);
  if (!plan.ok()) {
    if (asks_for_something(options)) return plan.status();
    warn(std::string(message_of(plan.status())));
    return HostPlan{.why_no_gpu = "no plan could be made"};
  }
  const topology::CpuSet task_cpus = options.cores.value_or(plan->machine.allowed) - options.reserved;
  // Empty means no restriction: AffinityBinder then leaves the process as it is.
  if (task_cpus != plan->machine.allowed) plan->task_cpus = task_cpus;
  if (options.log_device_placement) print_text("{}", why_table(*plan, options));
  return plan;
}

uint32_t tower_count(const HostPlan& plan, const TaskOptions& options) {
  if (options.towers > 0) return options.towers;
  const auto towers = topology::towers_of(plan.placement, static_cast<int>(options.task.index));
  // Without a plan there is no tower in it, but a worker computes at least one.
  return std::max(1u, static_cast<uint32_t>(towers.size()));
}

std::vector<UnitPlace> places_of(const HostPlan& plan, const TaskOptions& options) {
  const auto task_index = static_cast<int>(options.task.index);
  const std::string task = fmt::format("{}/{}", options.task.job, options.task.index);
  // A unit without a place in the plan: the plan failed, or it holds fewer units than the flags ask for.
  const std::string unknown = options.no_pin ? "not bound (--no-pin)" : "not bound (see the warning)";
  std::vector<UnitPlace> places;
  if (is_ps(options)) {
    const auto shards = topology::shards_of(plan.placement, task_index);
    for (uint32_t i = 0; i < options.shards; ++i) {
      const std::string name = options.shards == 1 ? task : fmt::format("{} shard {}", task, i);
      places.push_back(i < shards.size() ? unit(plan, options, name, shards[i], shards[i].cpus)
                                         : UnitPlace{.name = name, .why_free = unknown});
    }
  } else {
    const auto towers = topology::towers_of(plan.placement, task_index);
    for (uint32_t i = 0; i < options.tower_count; ++i) {
      const std::string name = options.tower_count == 1 ? task : fmt::format("{} tower {}", task, i);
      places.push_back(i < towers.size() ? unit(plan, options, name, towers[i], towers[i].compute)
                                         : UnitPlace{.name = name, .why_free = unknown});
      if (i < towers.size()) places.back().gpu_ordinal = ordinal_of(plan, towers[i]);
    }
  }
  return places;
}

int compute_threads(const HostPlan& plan, const TaskOptions& options, size_t tower) {
  const auto towers = topology::towers_of(plan.placement, static_cast<int>(options.task.index));
  // Other tasks here are not known: as if all tasks of the run were here.
  if (!options.why_unbound.empty())
    return std::max(1, core_count() / static_cast<int>(std::max(1u, options.ps + options.workers)));
  // Without a plan the cores are divided by the number of threads that compute or spin.
  if (tower >= towers.size()) return std::max(1, core_count() / std::max(1, busy_threads(options)));
  // More threads than cores: each further thread would only wait for the others.
  if (plan.placement.oversubscribed) return 1;
  // A core's second hardware thread adds nothing to products that keep its vector units busy.
  const auto shares = [&](const topology::Core& core) {
    return std::any_of(core.cpus.begin(), core.cpus.end(),
                       [&](int cpu) { return towers[tower].compute.contains(cpu); });
  };
  const auto cores = std::count_if(plan.machine.cores.begin(), plan.machine.cores.end(), shares);
  return std::max(1, static_cast<int>(cores));
}

WaitPolicy wait_policy(const HostPlan& plan, const TaskOptions& options) {
  // Longer than an exchange of a small model, too short to matter.
  constexpr Duration kSpin = std::chrono::microseconds(200);
  if (options.wait == "spin") return {.spin = kSpin};
  if (options.wait == "adapt") return kAdaptiveWait;
  if (options.wait == "block") return {};
  const bool spins =
      plan.known ? plan.placement.wait == topology::SpinMode::spin : busy_threads(options) <= core_count();
  return spins ? WaitPolicy{.spin = kSpin} : kAdaptiveWait;
}

}  // namespace gradrail::launch
