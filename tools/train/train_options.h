#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/reduce/tower_sum.h"
#include "launch/launcher/launcher.h"
#include "launch/launcher/rendezvous_url.h"
#include "ps/protocol/cluster_spec.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/optimizer_settings.h"
#include "tools/monitor/flags.h"
#include "tools/security_flags.h"
#include "topology/cpu_set.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

constexpr double kDefaultSaveSecs = 600.0;  // TensorFlow's
constexpr uint32_t kMaxSlotMib = 1 << 20;   // 1 TiB, as the largest model

/// The flags of `gradrail train` as typed.
struct TrainFlags {
  std::string model = "mlp";
  uint32_t ps = 1;
  uint32_t workers = 3;
  bool workers_given = false;
  bool ps_given = false;
  uint32_t towers = 0;  ///< 0: one for each GPU that the plan has, one on CPUs
  bool no_soft_placement = false;
  std::string gpu;                  ///< these alone
  std::string reduce = "auto";      ///< of a worker's towers
  std::string ps_device = "host";   ///< where parameters lie
  std::string gpu_direct = "auto";  ///< how gradients leave GPU memory
  bool cnn_logits_relu = true;
  uint32_t shards = 1;
  std::string mode = "async";
  std::string push = "fp32";
  std::string returns = "fp32";
  std::string transport = "auto";
  bool no_fallback = false;
  std::string require;
  std::string ofi_provider;
  uint32_t path_timeout_s = 10;
  std::string rails = "auto";    ///< transport::rails::parse_rails()
  std::string streams = "auto";  ///< transport::rails::parse_streams()
  double failback_secs = 30.0;
  std::string plugin_dir;
  bool verbose = false;
  uint32_t epochs = 20;
  uint32_t batch_size = 100;
  float learning_rate = 0.0f;      ///< 0: the model's default
  std::string optimizer = "auto";  ///< the model's own
  float weight_decay = 0.0f;
  float momentum = 0.9f;
  uint32_t momentum_every = 0;
  std::string data_dir;
  uint64_t seed = 1;
  uint32_t bucket_kib = 0;
  bool checksums = false;
  std::string checkpoint_dir;
  uint64_t save_steps = 0;
  std::optional<double> save_secs;  ///< not given: kDefaultSaveSecs unless save_steps is
  uint32_t keep = 5;
  uint32_t log_every = 100;
  std::string wait = "auto";
  bool no_pin = false;
  std::string cores;
  std::string reserve;
  std::string nic;
  bool log_device_placement = false;
  uint32_t join_timeout_seconds = 1800;
  uint32_t heartbeat_timeout_s = 4;  ///< a worker that was stopped is noticed within 5 s
  uint32_t min_workers = 1;
  uint32_t slot_mib = 32;
  uint16_t data_port = 0;
  uint32_t rejoin_timeout_s = 60;
  uint32_t backup_ps = 0;
  std::string parent;         ///< file
  uint32_t first_worker = 0;  ///< of a node, among the workers of all nodes
  uint32_t max_restarts = 3;
  MonitoringFlags monitoring;
  SecurityFlags security;

  std::string cluster;  ///< file
  std::string ps_hosts;
  std::string worker_hosts;
  std::string job_name;
  int64_t task_index = -1;
  std::string bind;
  launch::RendezvousUrl rendezvous;
  bool local = false;      ///< whatever the environment says
  std::optional<uint32_t> interactive;  ///< `gradrail run`: the worker that has the terminal
};

/// Everything a task needs, checked.
struct TrainOptions {
  TrainFlags flags;
  ps::Mode mode;
  ps::PushFormat push = ps::PushFormat::fp32;
  ps::ReturnFormat returns = ps::ReturnFormat::fp32;
  ps::OptimizerConfig optimizer;
  std::vector<std::string> transports;
  bool rdma_only = true;  ///< plug-ins may not carry the bytes over sockets: no flag names them
  ps::Security security;
  ps::ClusterSpec cluster;
  ps::TaskId task;
  ps::ClusterSpec parent;                ///< of the next level of a tree; empty: there is none
  uint32_t parent_index = 0;             ///< of this ps among the workers there
  std::string local_run;                 ///< local cluster: its name; differs from that of each other one
  std::vector<std::string> program;      ///< the command of a worker; empty: `gradrail train` itself
  std::optional<launch::Launch> launch;  ///< the cluster is known once all tasks have met: launched_task.h
  bool own_cpus = false;                 ///< a launcher has bound us to cpus that are not those of the other tasks here
  std::string why_unbound;               ///< not to be bound to cpus, and why; "": as the plan says
  /// Where a ps is now; empty: where the cluster says. Called from one thread of the task.
  std::function<absl::StatusOr<std::string>(uint32_t ps_index)> ps_address;
  uint16_t place_on_host = 0;  ///< among the tasks here, where a launcher has started them
  uint32_t towers = 1;         ///< of this worker; the plan may give it more, one for each GPU
  gpu::Reduce reduce = gpu::Reduce::automatic;
  bool local = true;                      ///< all tasks as processes of this host, started by us
  std::optional<topology::CpuSet> cores;  ///< the plan may use these alone
  topology::CpuSet reserved;              ///< the plan leaves these free
  std::vector<std::string> gpus;          ///< the plan may use these alone; none: all
  std::vector<std::string> nics;          ///< the plan may use these alone; none: all
};

/// Without a parameter server: this process trains, alone.
inline bool trains_alone(const TrainOptions& options) { return options.local && options.flags.ps == 0; }
inline bool is_local_cluster(const TrainOptions& options) { return options.local && options.flags.ps > 0; }

/// TensorFlow's task of job `evaluator`. Each worker evaluates the model at its end, so that such a task has nothing to
/// do.
inline bool is_evaluator(const TrainOptions& options) { return options.task.job == "evaluator"; }

/// Adds the flags, each with - and _ spelling.
void add_train_flags(CLI::App& command, TrainFlags& flags);

/// Where `--plugin-dir` goes, of every subcommand; before the list of transports is first looked at.
void add_plugin_flag(CLI::App& command, std::string& folder);
absl::Status use_plugin_dir(const std::string& folder);

/// A usage error if the run begins with fewer workers than --min_workers.
absl::Status check_min_workers(const TrainFlags& flags, size_t workers);

/// Whether the text of --bind names a port, not a host alone.
bool names_port(const std::string& bind, const ps::HostPort& parsed);

/// Checks the folder of --data_dir, also for a model that does not read it, and the address of --bind.
/// Errors  NOT_FOUND, FAILED_PRECONDITION: name the flag.
absl::Status check_host_of_worker(const TrainFlags& flags);

/// Names of the given flags that ask for checkpoints, such as "--save_steps, --save_secs".
std::string given_checkpoint_flags(const TrainFlags& flags);

/// The optimizer of the flags and of the model. INVALID_ARGUMENT names the flag.
absl::StatusOr<ps::OptimizerConfig> optimizer_of(const TrainFlags& flags);

/// Reads the cluster of --parent, and finds this ps among its workers. INVALID_ARGUMENT names the flag.
absl::Status set_parent(TrainOptions& options);

/// INVALID_ARGUMENT names the flag, what is wrong with it and what would be right.
absl::StatusOr<TrainOptions> check_train_flags(const TrainFlags& flags);

}  // namespace gradrail::tools
