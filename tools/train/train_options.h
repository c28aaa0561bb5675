#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/reduce/tower_sum.h"
#include "launch/launcher/launcher.h"
#include "launch/launcher/rendezvous_url.h"
#include "ps/protocol/cluster_spec.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/optimizer_settings.h"
#include "ps/protocol/security.h"
#include "tools/monitor/flags.h"
#include "topology/cpu_set.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

constexpr double kDefaultSaveSecs = 600.0;  // TensorFlow's
constexpr uint32_t kMaxSlotMib = 1 << 20;   // 1 TiB, as the largest model

/// The value of --bind.
struct BindAddress {
  std::string text;  ///< as typed; "": the flag is not given
  std::string host;
  bool has_port = false;  ///< `text` is "host:port"
};
/// Errors  INVALID_ARGUMENT: not "host" or "host:port".
absl::StatusOr<BindAddress> parse_bind(std::string_view text);

/// The options of one task. The parser of the flags sets them, then check_train_options() sets the rest.
struct TrainOptions {
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
  launch::RendezvousUrl rendezvous;
  bool is_local_asked = false;  ///< --local, whatever the environment says
  uint32_t backup_ps = 0;
  uint32_t max_restarts = 3;
  std::optional<uint32_t> interactive;  ///< `gradrail run`: the worker that has the terminal
  std::vector<std::string> program;     ///< the command of a worker; empty: `gradrail train` itself
  uint32_t join_timeout_seconds = 1800;
  uint32_t rejoin_timeout_s = 60;
  ps::Security security;
  std::string secret_file;

  // The task, as check_train_options() finds it in these options and in the environment.
  ps::ClusterSpec cluster;
  ps::TaskId task;
  bool local = true;                     ///< all tasks as processes of this host, started by us
  std::string local_run;                 ///< local cluster: its name; differs from that of each other one
  std::optional<launch::Launch> launch;  ///< the cluster is known once all tasks have met: launched_task.h
  bool own_cpus = false;                 ///< a launcher has bound us to cpus that are not those of the other tasks here
  std::string why_unbound;               ///< not to be bound to cpus, and why; "": as the plan says
  /// Where a ps is now; empty: where the cluster says. Called from one thread of the task.
  std::function<absl::StatusOr<std::string>(uint32_t ps_index)> ps_address;
  uint16_t place_on_host = 0;  ///< among the tasks here, where a launcher has started them

  // Place on this host.
  uint32_t towers = 0;       ///< copies of the model in a worker; 0: one for each GPU that the plan has, one on CPUs
  uint32_t tower_count = 1;  ///< of this worker, as the plan has them
  uint32_t shards = 1;
  bool no_soft_placement = false;
  bool no_pin = false;
  std::optional<topology::CpuSet> cores;  ///< the plan may use these alone
  topology::CpuSet reserved;              ///< the plan leaves these free
  std::string gpu;
  std::vector<std::string> gpus;  ///< of `gpu`: the plan may use these alone; none: all
  std::string nic;
  std::vector<std::string> nics;  ///< of `nic`: the plan may use these alone; none: all
  std::string wait = "auto";
  bool log_device_placement = false;

  // Parameter servers.
  uint32_t min_workers = 1;
  uint32_t slot_mib = 32;
  uint16_t data_port = 0;
  uint32_t heartbeat_timeout_s = 4;  ///< a worker that was stopped is noticed within 5 s
  std::string ps_device = "host";    ///< where parameters lie
  std::string parent_file;
  ps::ClusterSpec parent;     ///< of the next level of a tree; empty: there is none
  uint32_t parent_index = 0;  ///< of this ps among the workers there
  std::string checkpoint_dir;
  uint64_t save_steps = 0;
  std::optional<double> save_secs;  ///< not given: kDefaultSaveSecs unless save_steps is
  uint32_t keep = 5;

  // Model.
  std::string model = "mlp";
  bool cnn_logits_relu = true;
  std::string data_dir;
  uint64_t seed = 1;
  uint32_t first_worker = 0;  ///< of a node, among the workers of all nodes
  uint32_t epochs = 20;
  uint32_t batch_size = 100;
  std::string optimizer_name = "auto";                   ///< the model's own
  ps::OptimizerConfig optimizer{.learning_rate = 0.0f};  ///< rate 0: the model's default
  ps::Mode mode;
  ps::PushFormat push;
  ps::ReturnFormat returns = ps::ReturnFormat::fp32;
  gpu::Reduce reduce = gpu::Reduce::automatic;  ///< of a worker's towers
  std::string gpu_direct = "auto";              ///< how gradients leave GPU memory
  uint32_t log_every = 100;

  // Transport.
  std::string transport = "auto";
  std::vector<std::string> transports;  ///< of `transport`, in order of preference
  bool rdma_only = true;                ///< plug-ins may not carry the bytes over sockets: no flag names them
  bool no_fallback = false;
  std::string require;
  std::string ofi_provider;
  std::string rails = "auto";    ///< transport::rails::parse_rails()
  std::string streams = "auto";  ///< transport::rails::parse_streams()
  uint32_t path_timeout_s = 10;
  double failback_secs = 30.0;
  uint32_t bucket_kib = 0;
  bool checksums = false;
  std::string plugin_dir;
  bool verbose = false;

  MonitoringFlags monitoring;
};

/// Without a parameter server: this process trains, alone.
inline bool trains_alone(const TrainOptions& options) { return options.local && options.ps == 0; }
inline bool is_local_cluster(const TrainOptions& options) { return options.local && options.ps > 0; }

/// TensorFlow's task of job `evaluator`. Each worker evaluates the model at its end, so that such a task has nothing to
/// do.
inline bool is_evaluator(const TrainOptions& options) { return options.task.job == "evaluator"; }

/// Adds the flags, each with - and _ spelling.
void add_train_flags(CLI::App& command, TrainOptions& options);

/// Where `--plugin-dir` goes, of every subcommand; before the list of transports is first looked at.
void add_plugin_flag(CLI::App& command, std::string& folder);
absl::Status use_plugin_dir(const std::string& folder);

/// A usage error if the run begins with fewer workers than --min_workers.
absl::Status check_min_workers(const TrainOptions& options, size_t workers);

/// Checks the folder of --data_dir, also for a model that does not read it, and the address of --bind.
/// Errors  NOT_FOUND, FAILED_PRECONDITION: name the flag.
absl::Status check_host_of_worker(const TrainOptions& options);

/// Names of the given flags that ask for checkpoints, such as "--save_steps, --save_secs".
std::string given_checkpoint_flags(const TrainOptions& options);

/// Completes TrainOptions::optimizer by the defaults of the model. INVALID_ARGUMENT names the flag.
absl::Status set_optimizer(TrainOptions& options);

/// Reads the cluster of --parent, and finds this ps among its workers. INVALID_ARGUMENT names the flag.
absl::Status set_parent(TrainOptions& options);

/// INVALID_ARGUMENT names the flag, what is wrong with it and what would be right.
absl::StatusOr<TrainOptions> check_train_options(TrainOptions options);

}  // namespace gradrail::tools
