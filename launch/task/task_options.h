#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gradrail/cluster.h"
#include "launch/launcher/launcher.h"
#include "launch/launcher/rendezvous_url.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/security.h"
#include "topology/cpu_set.h"

namespace gradrail::launch {

/// The value of --bind.
struct BindAddress {
  std::string text;  ///< as typed; "": the flag is not given
  std::string host;
  bool has_port = false;  ///< `text` is "host:port"
};
/// Errors  INVALID_ARGUMENT: not "host" or "host:port".
absl::StatusOr<BindAddress> parse_bind(std::string_view text);

/// What the start of a task needs: the cluster, and the place of the task on its host. The program that links this room
/// sets it from its flags, and resolve_cluster() sets what depends on the environment.
struct TaskOptions {
  // Cluster.
  uint32_t ps = 1;
  uint32_t workers = 3;
  bool workers_given = false;
  bool ps_given = false;
  std::string cluster_file;
  std::string ps_hosts;
  std::string worker_hosts;
  std::string job_name;
  int64_t task_index = -1;
  BindAddress bind;
  RendezvousUrl rendezvous;
  bool is_local_asked = false;  ///< --local, whatever the environment says
  uint32_t backup_ps = 0;
  uint32_t max_restarts = 3;
  std::optional<uint32_t> interactive;  ///< the worker that has the terminal
  std::vector<std::string> program;     ///< the command of a worker; empty: TaskBodies::run_worker
  uint32_t join_timeout_seconds = 1800;
  uint32_t rejoin_timeout_s = 60;
  Mode mode;  ///< the supervisor ends a run that waits for a worker in vain
  Security security;
  std::string secret_file;

  // The task, by resolve_cluster().
  ClusterSpec cluster;
  TaskId task;
  bool local = true;             ///< all tasks as processes of this host, started by us
  std::string local_run;         ///< local cluster: its name; differs from that of each other one
  std::optional<Launch> launch;  ///< the cluster is known once all tasks have met: start.cc
  bool own_cpus = false;         ///< a launcher has bound us to cpus that are not those of the other tasks here
  std::string why_unbound;       ///< not to be bound to cpus, and why; "": as the plan says
  /// Where a ps is now; empty: where the cluster says. Called from one thread of the task.
  std::function<absl::StatusOr<std::string>(uint32_t ps_index)> ps_address;
  uint16_t place_on_host = 0;  ///< among the tasks here, where a launcher has started them

  // Place on this host.
  uint32_t shards = 1;  ///< threads of a ps
  uint32_t towers = 0;  ///< devices that a worker computes on; 0: one for each GPU that the plan has, else the CPUs
  uint32_t tower_count = 1;  ///< of this worker, as the plan has them
  std::string why_no_gpu;    ///< the towers have no use for a GPU, and why; "": they have
  bool no_soft_placement = false;
  bool no_pin = false;
  std::optional<topology::CpuSet> cores;  ///< the plan may use these alone
  topology::CpuSet reserved;              ///< the plan leaves these free
  std::vector<std::string> gpus;          ///< the plan may use these alone; none: all
  std::vector<std::string> nics;          ///< the plan may use these alone; none: all
  bool require_rdma = false;              ///< plan and data connections use RDMA devices alone
  std::string wait = "auto";
  bool log_device_placement = false;
};

/// The host in the address of a task. The name of a worker may be another text, which is its own host.
std::string host_of(const std::string& address);

/// Without a parameter server: this process trains, alone.
inline bool trains_alone(const TaskOptions& options) { return options.local && options.ps == 0; }

constexpr char kEvaluator[] = "evaluator";
/// TensorFlow's task of job `evaluator`. Each worker evaluates the model at its end, so that such a task has nothing to
/// do.
inline bool is_evaluator(const TaskOptions& options) { return options.task.job == kEvaluator; }

}  // namespace gradrail::launch
