#include "tools/train/train_options.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <type_traits>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "base/exit_codes.h"
#include "base/flags/number_in.h"
#include "base/flags/text_value.h"
#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "launch/start/resolve_cluster.h"
#include "launch/task/backup_ps.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/training.h"
#include "ps/store/parameter_store.h"
#include "tools/security_flags.h"
#include "transport/negotiate.h"
#include "transport/plugin_loader.h"
#include "transport/rails/rails_setting.h"
#include "worker/models/workload.h"

namespace gradrail::tools {
namespace {

// One per GPU of the largest common hosts.
constexpr uint32_t kMaxTowers = 16;
constexpr double kMaxSaveSecs = 1e9;  // beyond it the clock's arithmetic would overflow

constexpr uint32_t kMaxBucketKib = 1 << 20;     // a bucket of 1 GiB
constexpr float kMaxMomentum = 0x1.fffffep-1f;  // the largest number below 1

constexpr float kMaxLearningRate = 1e6f;  // a larger rate makes every built-in model infinite after one step

/// "--batch_size,--batch-size": tutorials use underscores, most tools dashes. --help shows the given name first.
std::string both(const std::string& name) {
  std::string other = name;
  for (char& c : other) c = c == '_' ? '-' : c == '-' ? '_' : c;
  return other == name ? "--" + name : fmt::format("--{},--{}", name, other);
}

/// A request that needs a parameter server is an error where there is none.
absl::Status check_alone(TrainOptions& options) {
  if (options.ps > 0) return absl::OkStatus();
  if (!options.local)
    return absl::InvalidArgumentError(
        "--ps 0 trains in this process alone: leave out --cluster, --ps_hosts, --worker_hosts and TF_CONFIG");
  if (options.workers_given && options.workers != 1) {
    return absl::InvalidArgumentError(
        fmt::format("--workers {}: with --ps 0 this process is the only worker (--towers {} computes as much)",
                    options.workers, options.workers));
  }
  if (options.ps_device != "host") {
    return absl::InvalidArgumentError(
        fmt::format("--ps_device {}: parameter servers keep parameters on a GPU, and with --ps 0 there is none",
                    options.ps_device));
  }
  if (options.gpu_direct == "ipc" || options.gpu_direct == "dmabuf" || options.gpu_direct == "peermem")
    return absl::InvalidArgumentError(
        fmt::format("--gpu-direct {}: with --ps 0 no gradient leaves this process", options.gpu_direct));
  if (const bool pushes = options.push != PushFormat::fp32; pushes || options.returns != ReturnFormat::fp32)
    return absl::InvalidArgumentError(
        fmt::format("--{} {}: with --ps 0 no gradient leaves this process", pushes ? "push" : "return",
                    pushes ? push_format_name(options.push) : return_format_name(options.returns)));
  if (!options.checkpoint_dir.empty() || options.save_steps > 0 || options.save_secs.has_value()) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: parameter servers keep checkpoints, and with --ps 0 there is none", given_checkpoint_flags(options)));
  }
  if (options.shards != 1) {
    return absl::InvalidArgumentError(
        fmt::format("--shards {}: parameter servers have shards, and with --ps 0 there is none", options.shards));
  }
  if (options.security.encrypt_data) {
    return usage_error(
        absl::InvalidArgumentError("--encrypt-data: it encrypts the data between tasks, and with --ps 0 there is no "
                                   "other task; leave out the flag"));
  }
  options.workers = 1;
  options.task = {"worker", 0};
  return absl::OkStatus();
}

absl::StatusOr<gpu::Reduce> parse_reduce(std::string_view word) {
  if (word == "auto") return gpu::Reduce::automatic;
  return word == "host" ? gpu::Reduce::host : gpu::Reduce::nccl;
}

absl::Status check_placement(TrainOptions& options) {
  if (options.no_pin && (options.cores.has_value() || !options.reserved.empty())) {
    return absl::InvalidArgumentError(
        "--no-pin binds nothing, so that --cores and --reserve cannot be kept: give one or the other");
  }
  if (!options.nic.empty()) options.nics = absl::StrSplit(options.nic, ',', absl::SkipWhitespace());
  if (!options.gpu.empty()) options.gpus = absl::StrSplit(options.gpu, ',', absl::SkipWhitespace());
  if (!options.gpu.empty() && options.gpus.empty())
    return absl::InvalidArgumentError(fmt::format("--gpu '{}': names no GPU", options.gpu));
  if (!options.nic.empty() && options.nics.empty())
    return absl::InvalidArgumentError(fmt::format("--nic '{}': names no NIC", options.nic));
  return absl::OkStatus();
}

/// Adds options, each in both spellings. The last value counts: wrappers put their defaults first and what the user
/// typed behind.
class Adder {
 public:
  explicit Adder(CLI::App& command) : command_(command) {}

  template <typename Value, typename... Permitted>
  CLI::Option* operator()(const char* name, Value& value, const char* help, const Permitted&... permitted) const {
    CLI::Option* const option = command_.add_option(both(name), value, help)->capture_default_str()->take_last();
    (option->transform(permitted), ...);
    // Without a range of its own a number still gets the check of NumberIn: CLI11 accepts "-1" for an unsigned type.
    if constexpr (sizeof...(permitted) == 0 && std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>)
      option->transform(NumberIn<Value>());
    return option;
  }

  /// `parse` makes the value of the text, which is not kept.
  template <typename Value, typename Parse, typename... Permitted>
  void operator()(const char* name, Value& value, Parse parse, const char* default_text, const char* help,
                  const Permitted&... permitted) const {
    CLI::Option* const option = command_
                                    .add_option(
                                        both(name), [](const CLI::results_t&) { return true; }, help)
                                    ->type_name("TEXT")
                                    ->default_str(default_text)
                                    ->take_last();
    option->transform(parsed_into(value, std::move(parse)));
    (option->transform(permitted), ...);  // the last one is the first to see the text
  }

 private:
  CLI::App& command_;
};

void add_cluster_flags(CLI::App& command, TrainOptions& options, const Adder& add) {
  command.option_defaults()->group("Cluster");
  add("ps", options.ps,
      "parameter servers of a local cluster, or among the tasks of a launcher; 0: train only in this process",
      NumberIn(0u, 64u))
      ->each([&options](const std::string&) { options.ps_given = true; });
  add("workers", options.workers, "workers of a local cluster", NumberIn(1u, kMaxWorkers))
      ->each([&options](const std::string&) { options.workers_given = true; });
  add("min_workers", options.min_workers, "ps: abort the run if a loss leaves fewer workers");
  add("slot_mib", options.slot_mib, "ps: MiB of a shard for gradients of one worker on their way; 0: room for all",
      NumberIn(0u, kMaxSlotMib));
  add("data-port", options.data_port,
      "ps: first port for data connections; each shard has two consecutive ones for each transport over a network; 0: "
      "any",
      NumberIn<uint16_t>(0));
  add("cluster", options.cluster_file, "JSON file: {\"ps\": [\"host:port\"], \"worker\": [\"host:port\", ...]}");
  add("ps_hosts", options.ps_hosts, "comma-separated host:port list of the parameter servers; replaces --cluster",
      accepted_by(parse_host_list));
  add("worker_hosts", options.worker_hosts, "comma-separated host:port list of the workers; replaces --cluster",
      accepted_by(parse_host_list));
  add("job_name", options.job_name, "job of this task: ps, worker or chief; evaluator: the task ends at once",
      CLI::IsMember({"ps", "worker", "chief", "master", launch::kEvaluator}));
  add("task_index", options.task_index, "index of this task in its job, from 0", NumberIn<int64_t>(0));
  add("rendezvous", options.rendezvous.text,
      "tcp://HOST:PORT: address of the first task of srun, mpirun or torchrun; default: from the launcher. "
      "etcd://HOST:2379/JOB or etcds://: etcd stores the addresses; each task has --task_index, --ps and "
      "--workers",
      parsed_into(options.rendezvous, launch::parse_rendezvous));
  command.add_flag("--local,--alone", options.is_local_asked,
                   "start a cluster on this host; ignore TF_CONFIG and the variables of launchers");
  add("bind", options.bind.text,
      "address to listen on (ps) or to send from (worker); default: its address in the cluster",
      parsed_into(options.bind, launch::parse_bind));
  add("join-timeout", options.join_timeout_seconds, "seconds that a worker waits for the parameter servers to start",
      NumberIn(1u));
  add("heartbeat-timeout", options.heartbeat_timeout_s, "ps: seconds without a heartbeat until a worker is lost",
      NumberIn(1u));
  add("rejoin-timeout", options.rejoin_timeout_s,
      "seconds that a worker waits for the restart of a lost parameter server; 0: it does not wait");
  add("backup-ps", options.backup_ps,
      "1: the second half of the ps tasks are backups of the first half; a backup replaces a lost task, and no step is "
      "lost",
      NumberIn(0u, 1u));
  add("parent", options.parent_file,
      "ps: JSON file with the cluster of the next level of a tree, in which this ps is a worker at its own address; "
      "sync only");
  add("first_worker", options.first_worker,
      "worker of a tree: number of workers in the nodes before its own; it decides the order of the data",
      NumberIn(0u, kMaxWorkers));
  add("max-restarts", options.max_restarts, "local cluster: how often it starts lost parameter servers again");
}

void add_model_flags(CLI::App& command, TrainOptions& options, const Adder& add) {
  command.option_defaults()->group("Model");
  add("model", options.model, "mlp or cnn (both MNIST), or linear (y = 2x + 10)",
      CLI::IsMember({"mlp", "cnn", "linear"}));
  add("cnn_logits_relu", options.cnn_logits_relu,
      "cnn: ReLU on the layer with 10 units, as in the tutorial; false: this layer is linear",
      CLI::IsMember({"true", "false", "1", "0"}, CLI::ignore_case));
  add("data_dir", options.data_dir,
      "folder with the four IDX files of MNIST, or with train.tfrecords and test.tfrecords; default: built-in MNIST");
  add("seed", options.seed, "seed of the initial values and of the order of the data");
  command.option_defaults()->group("Training");
  add("epochs", options.epochs, "passes of each worker over the training images", NumberIn(1u));
  add("batch_size", options.batch_size, "images in a batch of one tower", NumberIn(1u));
  add("learning_rate", options.optimizer.learning_rate, "0: the default of the model (mlp 0.001, cnn 0.02, linear 0.1)",
      NumberIn(0.0f, kMaxLearningRate));
  add("optimizer", options.optimizer_name,
      "auto: the default of the model (cnn nesterov, the others sgd); torch_adam: adam with the epsilon of PyTorch",
      CLI::IsMember({"auto", "sgd", "momentum", "nesterov", "adam", "adamw", "torch_adam", "delayed_nesterov"}));
  add("momentum", options.optimizer.momentum, "constant of momentum, nesterov and delayed_nesterov; less than 1",
      NumberIn(0.0f, kMaxMomentum));
  add("momentum_every", options.optimizer.momentum_every,
      "delayed_nesterov: updates from one update of the momentum to the next; 0: the number of workers in async and "
      "ssp, else 1");
  add("weight_decay", options.optimizer.weight_decay,
      "adamw: of the parameters; others: times the parameter, added to the gradient", NumberIn(0.0f, kMaxLearningRate));
  add("mode", options.mode, parse_mode, "async",
      "async; sync; ssp:K, async with no worker more than K steps ahead of the slowest; quorum:K, sync that "
      "waits for K gradients of a step; a late one is part of the next step, or dropped with quorum:K,late=drop; "
      "quorum:K,grace=S waits at most S seconds longer for it (or grace=auto)");
  add("push", options.push, parse_push_format, "fp32",
      "elements of a gradient on its way: fp32; bf16: half; int8, int4: 1/4, 1/8; topk:P: the largest P percent");
  add("return", options.returns, parse_return_format, "fp32",
      "parameters on their way back: fp32; bf16: half; delta: bf16, what changed alone",
      CLI::IsMember(return_format_names()));
  add("shards", options.shards, "shards (threads) in each parameter server", NumberIn(1u, 256u));
  add("log_every", options.log_every, "batches between two progress lines", NumberIn(1u));
}

void add_transport_flags(CLI::App& command, TrainOptions& options, const Adder& add) {
  command.option_defaults()->group("Transport");
  add("transport", options.transport, "auto, or a list in order of preference: ucx,tcp");
  command.add_flag("--no-fallback,--no_fallback", options.no_fallback, "fail if a transport is refused");
  const auto is_required = [](std::string_view) -> absl::StatusOr<bool> { return true; };  // there is one word
  add("require", options.require_rdma, is_required, "", "rdma: refuse paths without an RDMA device",
      CLI::IsMember({"rdma"}));
  add("ofi_provider", options.ofi_provider, "name of the libfabric provider, such as verbs");
  add("rails", options.rails,
      "tcp: addresses of this host's network interfaces over which buckets are striped; auto: the links of similar "
      "speed; off: one",
      accepted_by(transport::rails::parse_rails));
  add("streams", options.streams, "tcp: connections on each rail; auto: one, and more on links of 40 Gb/s and above",
      accepted_by(transport::rails::parse_streams));
  add("path_timeout", options.path_timeout_s,
      "seconds without an acknowledgement after which a data connection over a network counts as lost",
      NumberIn(1u, 3600u));
  add("failback_secs", options.failback_secs, "seconds between two attempts to return to a better path; 0: never",
      NumberIn(0.0, 86400.0));
  add("bucket_kib", options.bucket_kib, "size of a bucket in KiB; 0: 256 to 1024 by the size of the model",
      NumberIn(0u, kMaxBucketKib));
  command.add_flag("--checksums", options.checksums, "verify each payload with CRC32C");
  command.add_flag("--verbose", options.verbose, "log each attempted path and the cost of memory registration");
  add_plugin_flag(command, options.plugin_dir);
}

void add_device_flags(CLI::App& command, TrainOptions& options, const Adder& add) {
  command.option_defaults()->group("GPU");
  add("towers", options.towers, "copies of the model in each worker; 0: one per GPU, or one on CPUs",
      NumberIn(0u, kMaxTowers));
  command.add_flag("--no-soft-placement,--no_soft_placement", options.no_soft_placement, "fail if a tower has no GPU");
  add("gpu", options.gpu, "comma-separated GPUs to plan with, by index, name or PCI address; default: all");
  add("reduce", options.reduce, parse_reduce, "auto",
      "method to average the towers of a worker: host, nccl, or auto (nccl if each tower has its own GPU)",
      CLI::IsMember({"auto", "host", "nccl"}));
  add("gpu_direct", options.gpu_direct,
      "path of gradients from a GPU: ipc (same host), dmabuf or peermem (network device), staged (pinned host memory), "
      "auto: the first that works",
      CLI::IsMember({"auto", "dmabuf", "peermem", "ipc", "staged"}));
  add("ps_device", options.ps_device, "memory of the parameters and of the optimizer state: host or gpu:N",
      accepted_by(ps::device_ordinal));
  command.option_defaults()->group("Placement");
  add("wait", options.wait,
      "method of waiting; auto: spin if each thread has its own core, else adapt: spin while answers come soon",
      CLI::IsMember({"auto", "spin", "adapt", "block"}));
  command.add_flag("--no-pin,--no_pin", options.no_pin, "bind no threads and no memory");
  add("cores", options.cores, topology::CpuSet::parse, "",
      "CPUs to use, as in taskset: 0-3,8; default: all permitted CPUs");
  add("reserve", options.reserved, topology::CpuSet::parse, "", "CPUs to leave free for the system or another job");
  add("nic", options.nic, "comma-separated NICs to plan with, by name, interface or PCI address; default: all");
  command.add_flag("--log_device_placement,--log-device-placement", options.log_device_placement,
                   "print the placement and its reasons");
}

void add_checkpointing_flags(CLI::App& command, TrainOptions& options, const Adder& add) {
  command.option_defaults()->group("Checkpoint");
  add("checkpoint_dir", options.checkpoint_dir, "ps: restore from and save to this folder");
  add("save_steps", options.save_steps,
      "chief: steps of the chief between two checkpoints; 0: no checkpoints by steps");
  command
      .add_option(both("save_secs"), options.save_secs,
                  "chief: seconds between two checkpoints; 0: no checkpoints by time; default: 600 without "
                  "--save_steps")
      ->transform(NumberIn(0.0, kMaxSaveSecs))
      ->take_last();
  add("keep", options.keep, "ps: number of complete checkpoints to keep; 0: all");
}

}  // namespace

void add_plugin_flag(CLI::App& command, std::string& folder) {
  command.add_option(both("plugin_dir"), folder, "absolute path of a folder with transport plug-ins, searched first")
      ->group("Transport")
      ->take_last();
}

absl::Status use_plugin_dir(const std::string& folder) {
  absl::Status set = folder.empty() ? transport::check_plugin_variable() : transport::set_plugin_dir(folder);
  if (set.ok()) return set;
  if (!folder.empty()) set = absl::InvalidArgumentError(fmt::format("--plugin_dir: {}", message_of(set)));
  // A relative path is wrong on each host; a missing folder is a property of this host.
  const char* const variable = std::getenv("GRADRAIL_PLUGIN_DIR");
  const std::string named = folder.empty() && variable != nullptr ? variable : folder;
  return named.starts_with('/') ? set : usage_error(set);
}

void add_train_flags(CLI::App& command, TrainOptions& options) {
  const Adder add(command);
  add_cluster_flags(command, options, add);
  add_model_flags(command, options, add);
  add_transport_flags(command, options, add);
  add_device_flags(command, options, add);
  add_checkpointing_flags(command, options, add);
  add_monitoring_flags(command, options.monitoring);
  add_security_flags(command, options.security, options.secret_file);
  command.add_flag("--encrypt-data,--encrypt_data", options.security.encrypt_data,
                   "encrypt gradients and parameters between hosts; needs --secret-file or TLS, equal in all tasks");
}

std::string given_checkpoint_flags(const TrainOptions& options) {
  std::vector<std::string_view> given;
  if (!options.checkpoint_dir.empty()) given.push_back("--checkpoint_dir");
  if (options.save_steps > 0) given.push_back("--save_steps");
  if (options.save_secs.has_value()) given.push_back("--save_secs");
  return fmt::format("{}", fmt::join(given, ", "));
}

absl::Status check_host_of_worker(const TrainOptions& options) {
  std::error_code error;
  if (!options.data_dir.empty() && !std::filesystem::is_directory(options.data_dir, error)) {
    return absl::NotFoundError(fmt::format("--data_dir {}: {}; give the folder with the data set, or omit the flag",
                                           options.data_dir, error ? error.message() : "it is not a folder"));
  }
  if (options.bind.text.empty()) return absl::OkStatus();
  const absl::Status own = check_own_address(options.bind.host);
  return own.ok() ? own : absl::FailedPreconditionError(fmt::format("--bind {}", message_of(own)));
}

/// A local cluster chooses the addresses of its ps.
absl::Status check_local_bind(const TrainOptions& options) {
  if (options.bind.text.empty()) return absl::OkStatus();
  return usage_error(absl::InvalidArgumentError(fmt::format(
      "--bind {}: the ps of a local cluster listen on 127.0.0.1, on free ports; omit --bind", options.bind.text)));
}

absl::Status check_min_workers(const TrainOptions& options, size_t workers) {
  if (options.min_workers <= workers) return absl::OkStatus();
  return usage_error(absl::InvalidArgumentError(
      fmt::format("--min_workers {}: the run has {} worker{}, so that the first loss would always end it; give at most "
                  "{}",
                  options.min_workers, workers, workers == 1 ? "" : "s", workers)));
}

/// The list must leave a transport that encrypts data, or that keeps data on one host.
absl::Status check_encrypted_transports(const TrainOptions& options) {
  if (!options.security.encrypt_data) return absl::OkStatus();
  const auto carries_in_clear = [](const std::string& name) {
    const absl::StatusOr<const transport::Transport*> found = transport::find_transport(name);
    return found.ok() && (*found)->plugin;
  };
  if (options.require_rdma)
    return absl::InvalidArgumentError("--encrypt-data --require rdma: RDMA carries data unencrypted; give one of them");
  const std::vector<std::string>& order = options.transports;
  if (!std::all_of(order.begin(), order.end(), carries_in_clear)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("--encrypt-data: {} carries data unencrypted; give --transport tcp", fmt::join(order, ", ")));
}

/// Several addresses are rails of tcp. UCX stripes by itself.
absl::Status check_rails(const TrainOptions& options) {
  const std::vector<std::string>& order = options.transports;
  const absl::StatusOr<transport::rails::RailsSetting> rails = transport::rails::parse_rails(options.rails);
  if (!rails.ok() || rails->hosts.size() < 2 || std::find(order.begin(), order.end(), "tcp") != order.end())
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("--rails {} --transport {}: only tcp has rails; omit --rails, and name the ports for ucx in "
                  "UCX_NET_DEVICES, such as mlx5_0:1,mlx5_1:1",
                  options.rails, options.transport));
}

/// Whether this process is worker 0, or starts it. A launcher of ps-lite may give a worker no index yet.
bool may_be_chief(const TrainOptions& options) {
  if (options.local) return true;
  if (!options.launch) return options.task.job == "worker" && options.task.index == 0;
  const uint32_t first_worker = options.launch->role == launch::Launch::Role::by_rank ? options.ps : 0;
  return options.launch->role != launch::Launch::Role::ps && options.launch->rank == first_worker;
}

/// A ps that does not know the others cannot share a folder with them, or replace one of them.
absl::Status check_sparse_ps(const TrainOptions& options) {
  const std::vector<std::string>& ps = options.cluster.ps;
  if (std::find(ps.begin(), ps.end(), kUnknownAddress) == ps.end()) return absl::OkStatus();
  if (options.checkpoint_dir.empty() && options.backup_ps == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "{}: \"sparseCluster\" of ps task {} leaves out the other ps tasks: give the addresses of all",
      options.backup_ps > 0 ? "--backup-ps 1" : "--checkpoint_dir " + options.checkpoint_dir, options.task.index));
}

absl::StatusOr<TrainOptions> check_train_options(TrainOptions options) {
  if (!options.cnn_logits_relu && options.model != "cnn")
    return absl::InvalidArgumentError(fmt::format("--cnn_logits_relu is of --model cnn; this is {}", options.model));
  GRADRAIL_RETURN_IF_ERROR(launch::resolve_cluster(options));
  if (is_evaluator(options)) return options;  // it does nothing, so that its other flags have no effect
  GRADRAIL_RETURN_IF_ERROR(check_alone(options));
  GRADRAIL_RETURN_IF_ERROR(check_sparse_ps(options));
  GRADRAIL_RETURN_IF_ERROR(check_backup_ps(options));
  GRADRAIL_RETURN_IF_ERROR(set_parent(options));
  GRADRAIL_RETURN_IF_ERROR(check_placement(options));
  GRADRAIL_RETURN_IF_ERROR(check_monitoring(options.monitoring, trains_alone(options)));
  GRADRAIL_RETURN_IF_ERROR(read_secret(options.security, options.secret_file));
  GRADRAIL_RETURN_IF_ERROR(usage_error(check_encryption(options.security)));
  if (!worker::computes_on_devices(options.model))
    options.why_no_gpu = fmt::format("model {} computes on CPUs only", options.model);
  // 0 asks for one per GPU: run_worker() replaces it once the plan is known.
  options.tower_count = std::max(1u, options.towers);
  if (options.cluster.sparse && options.mode.waits()) {
    return absl::InvalidArgumentError(fmt::format(
        "--mode {}: it waits for every worker, and the cluster description leaves out workers: name all, or use async",
        mode_text(options.mode)));
  }
  const size_t workers = options.local ? options.workers : options.cluster.workers.size();
  options.mode.worker_count = static_cast<uint32_t>(workers);
  GRADRAIL_RETURN_IF_ERROR(ps::check_bound(options.mode));
  // Only a ps uses the flag, and a worker with a sparse description does not know all workers.
  if (options.task.job != "worker" && !options.cluster.sparse)
    GRADRAIL_RETURN_IF_ERROR(check_min_workers(options, workers));
  GRADRAIL_RETURN_IF_ERROR(set_optimizer(options));
  GRADRAIL_RETURN_IF_ERROR(usage_error(transport::rails::check_lanes(options.rails, options.streams)));
  // Before the list of transports: that list loads the plug-ins.
  GRADRAIL_RETURN_IF_ERROR(use_plugin_dir(options.plugin_dir));
  absl::StatusOr<std::vector<std::string>> order = transport::parse_transport_order(options.transport);
  if (!order.ok()) return absl::InvalidArgumentError(fmt::format("--transport: {}", message_of(order.status())));
  options.transports = *std::move(order);
  GRADRAIL_RETURN_IF_ERROR(usage_error(check_rails(options)));
  // Only plug-ins can use RDMA devices.
  const auto without_device = [](const std::string& name) {
    const absl::StatusOr<const transport::Transport*> found = transport::find_transport(name);
    return found.ok() && !(*found)->plugin;
  };
  if (options.require_rdma && trains_alone(options))
    return absl::InvalidArgumentError("--ps 0 --require rdma: without a ps no path exists; omit one of the flags");
  if (options.require_rdma && std::all_of(options.transports.begin(), options.transports.end(), without_device)) {
    return absl::InvalidArgumentError(fmt::format(
        "--transport {} --require rdma: none of these uses an RDMA device; name ucx or ofi", options.transport));
  }
  GRADRAIL_RETURN_IF_ERROR(usage_error(check_encrypted_transports(options)));
  // A named plug-in may also carry bytes over sockets; "auto" uses one only with an RDMA device.
  options.rdma_only = options.transport == "auto";
  // Here once for all tasks of a local cluster; the other tasks know their job later.
  if (options.local) {
    GRADRAIL_RETURN_IF_ERROR(check_local_bind(options));
    GRADRAIL_RETURN_IF_ERROR(check_host_of_worker(options));
    GRADRAIL_RETURN_IF_ERROR(check_metrics_ports(options.monitoring, options.ps + options.workers));
  }
  // Worker 0 writes it. The other tasks of other hosts need not have its folder.
  if (may_be_chief(options)) GRADRAIL_RETURN_IF_ERROR(check_timeline(options.monitoring));
  GRADRAIL_RETURN_IF_ERROR(make_logs_folder(options.monitoring));
  return options;
}

}  // namespace gradrail::tools
