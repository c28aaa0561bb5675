// The flags of `gradrail train` and of `gradrail run`. What both have is declared once.
#include <type_traits>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "base/flags/number_in.h"
#include "base/flags/text_value.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/training.h"
#include "ps/store/parameter_store.h"
#include "tools/security_flags.h"
#include "tools/train/train_options.h"
#include "transport/rails/rails_setting.h"

namespace gradrail::tools {
namespace {

// One per GPU of the largest common hosts.
constexpr uint32_t kMaxTowers = 16;
constexpr uint32_t kMaxSlotMib = 1 << 20;  // 1 TiB, as the largest model
constexpr double kMaxSaveSecs = 1e9;       // beyond it the clock's arithmetic would overflow

constexpr uint32_t kMaxBucketKib = 1 << 20;     // a bucket of 1 GiB
constexpr float kMaxMomentum = 0x1.fffffep-1f;  // the largest number below 1

constexpr float kMaxLearningRate = 1e6f;  // a larger rate makes every built-in model infinite after one step

/// "--batch_size,--batch-size": tutorials use underscores, most tools dashes. --help shows the given name first.
std::string both(const std::string& name) {
  std::string other = name;
  for (char& c : other) c = c == '_' ? '-' : c == '-' ? '_' : c;
  return other == name ? "--" + name : fmt::format("--{},--{}", name, other);
}

absl::StatusOr<gpu::Reduce> parse_reduce(std::string_view word) {
  if (word == "auto") return gpu::Reduce::automatic;
  return word == "host" ? gpu::Reduce::host : gpu::Reduce::nccl;
}

/// "gpu0,gpu1"
absl::StatusOr<std::vector<std::string>> parse_names(const std::string& text) {
  std::vector<std::string> names = absl::StrSplit(text, ',', absl::SkipWhitespace());
  if (names.empty()) return absl::InvalidArgumentError(fmt::format("'{}' names no device", text));
  return names;
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

/// The cluster of `train` and of `run`, and its ps tasks.
void add_job_flags(CLI::App& command, TrainOptions& options, const Adder& add) {
  launch::TaskOptions& start = options.start;
  command.option_defaults()->group("Cluster");
  add("ps", start.ps,
      "parameter servers of a local cluster, or among the tasks of a launcher; train: 0 trains only in this process",
      NumberIn(0u, 64u))
      ->each([&start](const std::string&) { start.ps_given = true; });
  add("workers", start.workers, "workers of a local cluster", NumberIn(1u, kMaxWorkers))
      ->each([&start](const std::string&) { start.workers_given = true; });
  add("shards", start.shards, "shards (threads) in each parameter server", NumberIn(1u, 256u));
  command.add_flag("--local,--alone", start.is_local_asked,
                   "start a cluster on this host; ignore TF_CONFIG and the variables of launchers");
  add("rendezvous", start.rendezvous.text,
      "tcp://HOST:PORT: address of the first task of srun, mpirun or torchrun; default: from the launcher. "
      "train: etcd://HOST:2379/JOB or etcds://: etcd stores the addresses; each task has --task_index, --ps and "
      "--workers",
      parsed_into(start.rendezvous, launch::parse_rendezvous));
  add("bind", start.bind.text,
      "ps: address to listen on; worker of train: address to send from; default: its address in the cluster",
      parsed_into(start.bind, launch::parse_bind));
  add("data-port", options.data_port,
      "ps: first port for data connections; each shard has two consecutive ones for each transport over a network; 0: "
      "any",
      NumberIn<uint16_t>(0));
  add("slot_mib", options.slot_mib, "ps: MiB of a shard for gradients of one worker on their way; 0: room for all",
      NumberIn(0u, kMaxSlotMib));
  add("join-timeout", start.join_timeout_seconds,
      "seconds that a worker waits for the start of the ps tasks, and the tasks of a launcher for each other",
      NumberIn(1u));
  add("heartbeat-timeout", options.heartbeat_timeout_s, "ps: seconds without a heartbeat until a worker is lost",
      NumberIn(1u));
  add("rejoin-timeout", start.rejoin_timeout_s,
      "seconds that a worker waits for the restart of a lost parameter server; 0, or a local cluster without "
      "--restarts: it does not wait");
  add("restarts", start.max_restarts,
      "local cluster: how often lost tasks are started again; train: parameter servers only");
  add("backup-ps", start.backup_ps,
      "1: the second half of the ps tasks are backups of the first half; a backup replaces a lost task, and no step is "
      "lost",
      NumberIn(0u, 1u));
}

/// The checkpoints of a ps.
void add_store_flags(CLI::App& command, TrainOptions& options, const Adder& add) {
  command.option_defaults()->group("Checkpoint");
  add("checkpoint_dir", options.checkpoint_dir,
      "ps: restore from and save to this folder; run: when the program calls save_checkpoint");
  add("keep", options.keep, "ps: number of complete checkpoints to keep; 0: all");
}

void add_secret_flags(CLI::App& command, TrainOptions& options) {
  add_security_flags(command, options.start.security, options.start.secret_file);
  command.add_flag("--encrypt-data,--encrypt_data", options.start.security.encrypt_data,
                   "encrypt gradients and parameters between hosts; needs --secret-file or TLS, equal in all tasks");
}

/// The other ways to describe a cluster, and the place of a task in a tree.
void add_description_flags(TrainOptions& options, const Adder& add) {
  launch::TaskOptions& start = options.start;
  add("cluster", start.cluster_file, "JSON file: {\"ps\": [\"host:port\"], \"worker\": [\"host:port\", ...]}");
  add("ps_hosts", start.ps_hosts, "comma-separated host:port list of the parameter servers; replaces --cluster",
      accepted_by(parse_host_list));
  add("worker_hosts", start.worker_hosts, "comma-separated host:port list of the workers; replaces --cluster",
      accepted_by(parse_host_list));
  add("job_name", start.job_name, "job of this task: ps, worker or chief; evaluator: the task ends at once",
      CLI::IsMember({"ps", "worker", "chief", "master", launch::kEvaluator}));
  add("task_index", start.task_index, "index of this task in its job, from 0", NumberIn<int64_t>(0));
  add("min_workers", options.min_workers, "ps: abort the run if a loss leaves fewer workers");
  add("parent", options.parent_file,
      "ps: JSON file with the cluster of the next level of a tree, in which this ps is a worker at its own address; "
      "sync only; of a worker without effect");
  add("first_worker", options.first_worker,
      "worker of a tree: number of workers in the nodes before its own; it decides the order of the data",
      NumberIn(0u, kMaxWorkers));
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
  add("mode", options.start.mode, parse_mode, "async",
      "async; sync; ssp:K, async with no worker more than K steps ahead of the slowest; quorum:K, sync that "
      "waits for K gradients of a step; a late one is part of the next step, or dropped with quorum:K,late=drop; "
      "quorum:K,grace=S waits at most S seconds longer for it (or grace=auto)");
  add("push", options.push, parse_push_format, "fp32",
      "elements of a gradient on its way: fp32; bf16: half; int8, int4: 1/4, 1/8; topk:P: the largest P percent");
  add("return", options.returns, parse_return_format, "fp32",
      "parameters on their way back: fp32; bf16: half; delta: bf16, what changed alone",
      CLI::IsMember(return_format_names()));
  add("log_every", options.log_every, "batches between two progress lines", NumberIn(1u));
}

void add_transport_flags(CLI::App& command, TrainOptions& options, const Adder& add) {
  command.option_defaults()->group("Transport");
  add("transport", options.transport, "auto, or a list in order of preference: ucx,tcp");
  command.add_flag("--no-fallback,--no_fallback", options.no_fallback, "fail if a transport is refused");
  const auto is_required = [](std::string_view) -> absl::StatusOr<bool> { return true; };  // there is one word
  add("require", options.start.require_rdma, is_required, "", "rdma: refuse paths without an RDMA device",
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
  add("towers", options.start.towers, "copies of the model in each worker; 0: one per GPU, or one on CPUs",
      NumberIn(0u, kMaxTowers));
  command.add_flag("--no-soft-placement,--no_soft_placement", options.start.no_soft_placement,
                   "fail if a tower has no GPU");
  add("gpu", options.start.gpus, parse_names, "",
      "comma-separated GPUs to plan with, by index, name or PCI address; default: all");
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
  add("wait", options.start.wait,
      "method of waiting; auto: spin if each thread has its own core, else adapt: spin while answers come soon",
      CLI::IsMember({"auto", "spin", "adapt", "block"}));
  command.add_flag("--no-pin,--no_pin", options.start.no_pin, "bind no threads and no memory");
  add("cores", options.start.cores, topology::CpuSet::parse, "",
      "CPUs to use, as in taskset: 0-3,8; default: all permitted CPUs");
  add("reserve", options.start.reserved, topology::CpuSet::parse, "",
      "CPUs to leave free for the system or another job");
  add("nic", options.start.nics, parse_names, "",
      "comma-separated NICs to plan with, by name, interface or PCI address; default: all");
  command.add_flag("--log_device_placement,--log-device-placement", options.start.log_device_placement,
                   "print the placement and its reasons");
}

/// When the chief saves.
void add_save_flags(CLI::App& command, TrainOptions& options, const Adder& add) {
  add("save_steps", options.save_steps,
      "chief: steps of the chief between two checkpoints; 0: no checkpoints by steps");
  command
      .add_option(both("save_secs"), options.save_secs,
                  "chief: seconds between two checkpoints; 0: no checkpoints by time; default: 600 without "
                  "--save_steps")
      ->transform(NumberIn(0.0, kMaxSaveSecs))
      ->take_last();
}

}  // namespace

void add_plugin_flag(CLI::App& command, std::string& folder) {
  command.add_option(both("plugin_dir"), folder, "absolute path of a folder with transport plug-ins, searched first")
      ->group("Transport")
      ->take_last();
}

void add_train_flags(CLI::App& command, TrainOptions& options) {
  const Adder add(command);
  add_job_flags(command, options, add);
  add_description_flags(options, add);
  add_model_flags(command, options, add);
  add_transport_flags(command, options, add);
  add_device_flags(command, options, add);
  add_store_flags(command, options, add);
  add_save_flags(command, options, add);
  add_monitoring_flags(command, options.monitoring);
  add_secret_flags(command, options);
}

void add_run_flags(CLI::App& command, TrainOptions& options) {
  options.start.workers = 1;
  options.start.max_restarts = 0;
  const Adder add(command);
  add_job_flags(command, options, add);
  command
      .add_option(
          "--interactive", options.start.interactive,
          "the worker with this index reads the terminal, and gets its Ctrl-C; the input of the others is empty")
      ->transform(NumberIn(0u, kMaxWorkers - 1))
      ->take_last();
  add_store_flags(command, options, add);
  add_secret_flags(command, options);
  command.footer("PROGRAM [ARGUMENTS...] follows the flags, optionally after --.");
}

}  // namespace gradrail::tools
