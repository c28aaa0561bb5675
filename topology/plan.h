#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/machine.h"

namespace gradrail::topology {

enum class Job { ps, worker };
enum class Towers {
  automatic,  ///< on GPUs when there are any we can use, else on CPUs
  gpu,        ///< no GPU is an error
  cpu,
};

/// One process of the host, in the order of the cluster's list. Every process of a host states all of them, its own
/// and the others', and reads its own lines off the same plan: no two need to talk.
struct ProcessRequest {
  Job job = Job::worker;
  int task_index = 0;
  int units = 0;  ///< towers of a worker (0: one for each of its GPUs, 1 on CPUs), shards of a ps
};

/// `other_threads` of a host where gradrail is not alone: the system, heartbeats, somebody's shell. Where busy threads
/// are bound to every cpu, or spin on it, each of those costs one of them a time slice, and the others wait for it.
constexpr int kRestOfTheHost = 1;

struct Request {
  std::vector<ProcessRequest> processes;
  Towers towers = Towers::automatic;
  int cores_per_tower = 0;        ///< for computing; 0: what there is, shared evenly, never less than one
  int other_threads = 0;          ///< of all the host, that work now and then and need a cpu then
  bool progress_threads = true;   ///< each tower has one, and it is busy
  CpuSet reserved;                ///< cpus that stay free, for the system or another job
  std::optional<CpuSet> cores;    ///< --cores: these cpus only
  std::vector<std::string> gpus;  ///< --gpu: these only, in this order; by index, name or PCI address; again: shared
  std::vector<std::string> nics;  ///< --nic: these only; by name, interface or PCI address
  bool rdma_only = false;         ///< plain Ethernet is no answer
};

/// Why something was chosen, and why nothing else was.
struct Rejected {
  std::string name, reason;
};
struct Decision {
  std::string what;    ///< "GPU", "NIC", "cores", …
  std::string chosen;  ///< "mlx5_1"; "none"
  std::string reason;
  std::vector<Rejected> rejected;
};

struct TowerPlace {
  int task_index = 0;
  int tower = 0;                  ///< within its process
  int gpu = -1;                   ///< index into Machine::gpus; -1: a CPU tower
  int nic = -1;                   ///< index into Machine::nics
  std::optional<PathClass> path;  ///< between the two
  int numa_node = -1;             ///< where its memory should be; -1: anywhere
  CpuSet compute;                 ///< one cpu a thread, never empty; shared with others only on a crowded host
  CpuSet progress;                ///< one cpu, or as `compute` on a crowded host; empty: none was asked for
  std::vector<Decision> decisions;
};

struct ShardPlace {
  int task_index = 0;
  int shard = 0;  ///< within its process
  int nic = -1;
  int numa_node = -1;
  CpuSet cpus;  ///< one cpu, or several on a crowded host
  std::vector<Decision> decisions;
};

enum class WaitPolicy { spin, block };

struct Placement {
  std::vector<TowerPlace> towers;      ///< by task, then tower
  std::vector<ShardPlace> shards;      ///< by task, then shard
  bool crowded = false;                ///< more busy threads than cpus: threads share, and may move among, them
  WaitPolicy wait = WaitPolicy::spin;  ///< block: spinning would take the core from who has work
  std::string wait_reason;
  std::vector<std::string> notes;  ///< what could not be done as one would wish, for people
};

/// Where each tower and shard of this host goes. Pure and deterministic: equal input gives equal output.
/// Rules, in this order:
///   1. GPUs go to workers in order; a tower's NIC is an RDMA device where one can be used (nothing that plain Ethernet
///      is near to makes up for it), of those the nearest by PathClass, of those one that is active before one of which
///      nobody knows, of those the one whose card serves fewest. A NIC known to be down is never taken.
///   2. No two busy threads share a physical core while another is free; second siblings last.
///   3. A tower's cores are those of its GPU's NUMA node; where that has none for it, one of its package, else any. CPU
///      towers are spread over NUMA nodes and share all cores that are left evenly. Its progress thread sits beside it;
///      on unequal cores, on a slow one.
///   4. A shard's core is beside the NIC that feeds it and away from towers where there is room.
///   5. More threads than cpus, siblings and other threads and all: they share the cpus left, nobody is bound to a
///   single one, and
///      everybody blocks.
/// Errors  INVALID_ARGUMENT: a flag names what is not there ("--gpu 7: this machine has 4, 0 to 3"), cores that are not
///         allowed, more towers than GPUs with Towers::gpu, nothing left of the cpus.
absl::StatusOr<Placement> plan(const Machine& machine, const Request& request);

/// What one process reads off.
std::vector<TowerPlace> towers_of(const Placement& placement, int task_index);
std::vector<ShardPlace> shards_of(const Placement& placement, int task_index);

}  // namespace gradrail::topology
