#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/machine.h"

namespace gradrail::topology {

enum class Job { ps, worker };
enum class Towers {
  automatic,  ///< GPUs if there are usable ones, otherwise CPUs
  gpu,        ///< no GPU is an error
  cpu,
};

/// A process of the host, in the order of the cluster's list. Every process of a host states all processes of the host
/// and reads its own part of the same plan. The processes need no communication.
struct ProcessRequest {
  Job job = Job::worker;
  int task_index = 0;
  int units = 0;  ///< towers of a worker (0: one for each of its GPUs, 1 on CPUs), shards of a ps
};

/// `other_threads` of a host with other load: the system, heartbeats, a user's shell. Each of them takes a time slice
/// from one busy thread if every cpu has a bound or spinning busy thread. The other busy threads then wait for that
/// one.
constexpr int kRestOfTheHost = 1;

struct Request {
  std::vector<ProcessRequest> processes;
  Towers towers = Towers::automatic;
  int cores_per_tower = 0;        ///< cores for computing; 0: the available ones, shared evenly, never less than one
  int other_threads = 0;          ///< threads of the whole host that work at times and need a cpu then
  bool progress_threads = true;   ///< each tower has one, and it is busy
  CpuSet reserved;                ///< cpus that stay free, for the system or another job
  std::optional<CpuSet> cores;    ///< --cores: these cpus only
  std::vector<std::string> gpus;  ///< --gpu: these only, in this order; by index, name or PCI address; again: shared
  std::vector<std::string> nics;  ///< --nic: these only; by name, interface or PCI address
  bool rdma_only = false;         ///< plain Ethernet is no answer
};

/// The reasons for a choice, and against all others.
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
  int tower = 0;                  ///< index within its process
  int gpu = -1;                   ///< index into Machine::gpus; -1: a CPU tower
  int nic = -1;                   ///< index into Machine::nics
  std::optional<PathClass> path;  ///< path between the two
  int numa_node = -1;             ///< node for its memory; -1: anywhere
  CpuSet compute;                 ///< one cpu a thread, never empty; shared with others only on an oversubscribed host
  CpuSet progress;                ///< one cpu, or those of `compute` on an oversubscribed host; empty: not requested
  std::vector<Decision> decisions;
};

struct ShardPlace {
  int task_index = 0;
  int shard = 0;  ///< index within its process
  int nic = -1;
  int numa_node = -1;
  CpuSet cpus;  ///< one cpu, or several on an oversubscribed host
  std::vector<Decision> decisions;
};

enum class SpinMode { spin, adapt };

struct Placement {
  std::vector<TowerPlace> towers;  ///< sorted by task, then tower
  std::vector<ShardPlace> shards;  ///< sorted by task, then shard
  bool oversubscribed = false;     ///< more busy threads than cpus: threads share, and may move among, them
  SpinMode wait = SpinMode::spin;  ///< adapt: spinning can take the core from a thread with work
  std::string wait_reason;
  std::vector<std::string> notes;  ///< restrictions of the plan, for people
};

/// Assigns each tower and shard of this host. Pure and deterministic: equal input gives equal output.
/// Rules, in this order:
///   1. Workers get GPUs in order. NICs with a tenth of the best bandwidth are a last resort. Then count:
///      RDMA, PathClass, bandwidth of port and PCI link, active state, towers on the card. A NIC that is down is
///      never taken.
///   2. No two busy threads share a physical core while another is free; second siblings are last. A thread of a GPU
///      takes a sibling in the GPU's package before a core of another package.
///   3. A tower's cores are those of its GPU's NUMA node; when that node has none left, a core of its package, else
///      any. CPU towers share the remaining cores evenly. Their blocks cross as few packages and NUMA nodes as
///      possible. Memory and NIC follow the cores. A progress thread runs next to its tower, or on a slow core where
///      cores are unequal.
///   4. A shard's core is near the NIC that serves it, and away from towers where there is room.
///   5. If there are more threads than cpus, siblings included, they share the remaining cpus. GPU towers share those
///      of the GPU's node, then of its package, then any. The others share those with the fewest threads. No thread is
///      then bound to a single cpu, and waits spin briefly or never.
/// Errors  INVALID_ARGUMENT: a flag names a missing device ("--gpu 7: this machine has 4, 0 to 3"), or cores that are
///         not allowed. There are more towers than GPUs with Towers::gpu, or no cpus are left.
absl::StatusOr<Placement> plan(const Machine& machine, const Request& request);

/// The part of a plan that one process uses.
std::vector<TowerPlace> towers_of(const Placement& placement, int task_index);
std::vector<ShardPlace> shards_of(const Placement& placement, int task_index);

}  // namespace gradrail::topology
