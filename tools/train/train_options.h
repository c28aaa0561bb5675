#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/reduce/tower_sum.h"
#include "gradrail/cluster.h"
#include "launch/task/task_options.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/optimizer_settings.h"
#include "tools/monitor/flags.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

constexpr double kDefaultSaveSecs = 600.0;  // TensorFlow's

/// The options of one task of the built-in trainer. The parser of the flags sets them, then check_train_options() sets
/// the rest.
struct TrainOptions {
  launch::TaskOptions start;

  // Parameter servers.
  uint32_t min_workers = 1;
  uint32_t slot_mib = 32;
  uint16_t data_port = 0;
  uint32_t heartbeat_timeout_s = 4;  ///< a worker that was stopped is noticed within 5 s
  std::string ps_device = "host";    ///< where parameters lie
  std::string parent_file;
  ClusterSpec parent;         ///< of the next level of a tree; empty: there is none
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
  std::string optimizer_name = "auto";               ///< the model's own
  OptimizerConfig optimizer{.learning_rate = 0.0f};  ///< rate 0: the model's default
  PushFormat push;
  ReturnFormat returns = ReturnFormat::fp32;
  gpu::Reduce reduce = gpu::Reduce::automatic;  ///< of a worker's towers
  std::string gpu_direct = "auto";              ///< how gradients leave GPU memory
  uint32_t log_every = 100;

  // Transport.
  std::string transport = "auto";
  std::vector<std::string> transports;  ///< of `transport`, in order of preference
  bool rdma_only = true;                ///< plug-ins may not carry the bytes over sockets: no flag names them
  bool no_fallback = false;
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

/// Adds the flags of a command, each with - and _ spelling. Those of `run` are flags of `train`, but for --interactive.
void add_train_flags(CLI::App& command, TrainOptions& options);
void add_run_flags(CLI::App& command, TrainOptions& options);

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
