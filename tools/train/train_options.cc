#include "tools/train/train_options.h"

#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "absl/strings/str_split.h"
#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/training.h"
#include "tools/train/backup_ps.h"
#include "tools/train/etcd_task.h"
#include "tools/train/launched_task.h"
#include "transport/negotiate.h"
#include "transport/plugin_loader.h"

namespace gradrail::tools {
namespace {

constexpr float kMlpLearningRate = 0.001f;   // the reference experiment's
constexpr float kCnnLearningRate = 0.02f;    // test accuracy 0.99 after five epochs, updates a step old or not
constexpr float kLinearLearningRate = 0.1f;  // converges within 20 epochs

constexpr uint32_t kMaxTowers = 16;
constexpr double kMaxSaveSecs = 1e9;  // beyond it the clock's arithmetic would overflow

constexpr float kMaxLearningRate = 1e6f;  // beyond it every model of ours is infinite after one step

absl::Status invalid(const std::string& what) { return absl::InvalidArgumentError(what); }

/// "--batch_size,--batch-size": tutorials use underscores, most tools dashes. --help shows the given name first.
std::string both(const std::string& name) {
  std::string other = name;
  for (char& c : other) c = c == '_' ? '-' : c == '-' ? '_' : c;
  return other == name ? "--" + name : fmt::format("--{},--{}", name, other);
}

/// CLI11 goes by strtoull(), which takes -1 for the largest number there is, and what is larger for it too.
std::string check_whole_number(const std::string& text) {
  if (parse_number<uint64_t>(text)) return "";
  return fmt::format("'{}' is not a whole number from 0 to {}", text, UINT64_MAX);
}

absl::Status check_cluster(const TrainFlags& flags, TrainOptions& options) {
  if (uses_etcd(flags)) return check_rendezvous(options);
  const char* tf_config = std::getenv("TF_CONFIG");
  const bool hosts = !flags.ps_hosts.empty() || !flags.worker_hosts.empty();
  const bool configured = tf_config != nullptr && *tf_config != '\0';
  if (flags.local && (!flags.cluster.empty() || hosts))
    return invalid("--local is a cluster of its own: leave out --cluster, --ps_hosts and --worker_hosts");
  options.local = flags.cluster.empty() && !hosts && (!configured || flags.local);
  if (!options.local && !flags.rendezvous.empty()) {
    return invalid(fmt::format("--rendezvous {}: the cluster has the addresses of all tasks; leave out one of the two",
                               flags.rendezvous));
  }
  if (options.local) {
    if (!flags.job_name.empty() || flags.task_index >= 0) {
      return invalid(
          "--job_name and --task_index need a cluster: --cluster FILE, --ps_hosts and --worker_hosts, or TF_CONFIG");
    }
    return check_launch(options);
  }
  if (!flags.cluster.empty() && hosts) return invalid("give either --cluster or --ps_hosts and --worker_hosts");
  std::optional<ps::TaskId> task;
  absl::StatusOr<ps::ClusterSpec> cluster = absl::UnknownError("");
  if (!flags.cluster.empty()) {
    cluster = ps::read_cluster_file(flags.cluster);
  } else if (hosts) {
    cluster = ps::cluster_from_hosts(flags.ps_hosts, flags.worker_hosts);
  } else {
    absl::StatusOr<ps::TfConfig> config = ps::parse_tf_config(tf_config);
    if (!config.ok()) return config.status();
    cluster = std::move(config->cluster);
    task = std::move(config->task);
  }
  if (!cluster.ok()) return cluster.status();
  options.cluster = *std::move(cluster);
  if (!flags.job_name.empty()) {
    const bool is_only_one = flags.job_name == "chief";
    if (flags.task_index == -1 && !is_only_one)
      return invalid("--task_index is missing (which task of job '" + flags.job_name + "' is this?)");
    absl::StatusOr<ps::TaskId> named =
        ps::resolve_task(options.cluster, flags.job_name, flags.task_index == -1 ? 0 : flags.task_index);
    if (!named.ok()) return named.status();
    task = *std::move(named);
  }
  if (!task.has_value()) return invalid("--job_name and --task_index are missing (which task of the cluster is this?)");
  options.task = *task;
  return absl::OkStatus();
}

absl::Status check_numbers(const TrainFlags& flags) {
  if (flags.ps > 64) return invalid(fmt::format("--ps {}: must be 1 to 64, or 0 for none", flags.ps));
  if (flags.workers < 1 || flags.workers > ps::kMaxWorkers) {
    return invalid(fmt::format("--workers {}: must be 1 to {}", flags.workers, ps::kMaxWorkers));
  }
  if (flags.towers > kMaxTowers) {
    return invalid(fmt::format("--towers {}: must be 1 to {}, or 0 for one on each GPU", flags.towers, kMaxTowers));
  }
  if (flags.shards < 1 || flags.shards > 256)
    return invalid(fmt::format("--shards {}: must be 1 to 256", flags.shards));
  if (flags.epochs < 1) return invalid("--epochs 0: must be at least 1");
  if (flags.batch_size < 1) return invalid("--batch_size 0: must be at least 1");
  if (flags.log_every < 1) return invalid("--log_every 0: must be at least 1");
  if (flags.bucket_kib < 1 || flags.bucket_kib > 1 << 20) {
    return invalid(fmt::format("--bucket_kib {}: must be 1 to {}", flags.bucket_kib, 1 << 20));
  }
  if (!(flags.learning_rate >= 0.0f) || flags.learning_rate > kMaxLearningRate) {
    return invalid(fmt::format("--learning_rate {}: must be a positive number up to {}, or 0 for the model's own",
                               flags.learning_rate, kMaxLearningRate));
  }
  if (!(flags.momentum >= 0.0f && flags.momentum < 1.0f)) {
    return invalid(fmt::format("--momentum {}: must be 0 or more and less than 1", flags.momentum));
  }
  if (flags.join_timeout_seconds < 1)
    return invalid("--join-timeout 0: must be at least 1 (a worker needs a moment to reach its parameter servers)");
  if (flags.heartbeat_timeout_s < 1)
    return invalid("--heartbeat-timeout 0: must be at least 1 (workers ping twice a second)");
  if (flags.wait != "auto" && flags.wait != "spin" && flags.wait != "block") {
    return invalid(fmt::format("--wait '{}': there are auto, spin, block", flags.wait));
  }
  if (!flags.require.empty() && flags.require != "rdma") {
    return invalid(fmt::format("--require '{}': there is rdma", flags.require));
  }
  if (!(flags.failback_secs >= 0.0 && flags.failback_secs <= 86400.0)) {
    return invalid(fmt::format("--failback_secs {}: must be 0 (never) to 86400", flags.failback_secs));
  }
  if (const double secs = flags.save_secs.value_or(0.0); !(secs >= 0.0 && secs <= kMaxSaveSecs)) {
    return invalid(fmt::format("--save_secs {}: must be 0 (not by the clock) to {}", secs, kMaxSaveSecs));
  }
  if (flags.model != "mlp" && flags.model != "cnn" && flags.model != "linear") {
    return invalid(fmt::format("--model '{}': there are mlp, cnn, linear", flags.model));
  }
  if (!flags.cnn_logits_relu && flags.model != "cnn") {
    return invalid(fmt::format("--cnn_logits_relu is of --model cnn; this is {}", flags.model));
  }
  return absl::OkStatus();
}

/// A request that needs a parameter server is an error where there is none.
absl::Status check_alone(const TrainFlags& flags, TrainOptions& options) {
  if (flags.ps > 0) return absl::OkStatus();
  if (!options.local) {
    return invalid(
        "--ps 0 trains in this process alone: leave out --cluster, --ps_hosts, --worker_hosts and TF_CONFIG");
  }
  if (flags.workers_given && flags.workers != 1) {
    return invalid(
        fmt::format("--workers {}: with --ps 0 this process is the only worker (--towers {} computes as much)",
                    flags.workers, flags.workers));
  }
  if (flags.ps_device != "host") {
    return invalid(fmt::format(
        "--ps_device {}: parameter servers keep parameters on a GPU, and with --ps 0 there is none", flags.ps_device));
  }
  if (flags.gpu_direct == "ipc" || flags.gpu_direct == "dmabuf" || flags.gpu_direct == "peermem") {
    return invalid(fmt::format("--gpu-direct {}: with --ps 0 no gradient leaves this process", flags.gpu_direct));
  }
  if (!flags.checkpoint_dir.empty() || flags.save_steps > 0 || flags.save_secs.has_value()) {
    return invalid(
        "--checkpoint_dir, --save_steps and --save_secs: parameter servers keep checkpoints, and with --ps 0 there is "
        "none");
  }
  if (flags.shards != 1) {
    return invalid(
        fmt::format("--shards {}: parameter servers have shards, and with --ps 0 there is none", flags.shards));
  }
  options.flags.workers = 1;
  options.task = {"worker", 0};
  return absl::OkStatus();
}

float model_rate(const std::string& model) {
  if (model == "cnn") return kCnnLearningRate;
  return model == "linear" ? kLinearLearningRate : kMlpLearningRate;
}

absl::StatusOr<ps::OptimizerKind> chosen_optimizer(const TrainFlags& flags) {
  if (flags.optimizer != "auto") return ps::parse_optimizer(flags.optimizer);
  return flags.model == "cnn" ? ps::OptimizerKind::nesterov : ps::OptimizerKind::sgd;
}

absl::StatusOr<gpu::Reduce> parse_reduce(const std::string& word) {
  if (word == "auto") return gpu::Reduce::automatic;
  if (word == "host") return gpu::Reduce::host;
  if (word == "nccl") return gpu::Reduce::nccl;
  return invalid(fmt::format("--reduce '{}': there are auto, host, nccl", word));
}

/// Which of them this host can do is another question (check_gpu_direct).
absl::Status check_gpu_direct_word(const std::string& word) {
  for (const char* known : {"auto", "dmabuf", "peermem", "ipc", "staged"}) {
    if (word == known) return absl::OkStatus();
  }
  return invalid(fmt::format("--gpu-direct '{}': there are auto, dmabuf, peermem, ipc, staged", word));
}

absl::StatusOr<topology::CpuSet> parse_cpus(const char* flag, const std::string& list) {
  absl::StatusOr<topology::CpuSet> cpus = topology::CpuSet::parse(list);
  if (!cpus.ok()) return invalid(fmt::format("{}: {}", flag, message_of(cpus.status())));
  if (cpus->empty()) return invalid(fmt::format("{} names no cpu (a list as in taskset: 0-3,8)", flag));
  return cpus;
}

absl::Status check_placement(const TrainFlags& flags, TrainOptions& options) {
  if (flags.no_pin && !(flags.cores.empty() && flags.reserve.empty())) {
    return invalid("--no-pin binds nothing, so that --cores and --reserve cannot be kept: give one or the other");
  }
  if (!flags.cores.empty()) {
    absl::StatusOr<topology::CpuSet> cores = parse_cpus("--cores", flags.cores);
    if (!cores.ok()) return cores.status();
    options.cores = *std::move(cores);
  }
  if (!flags.reserve.empty()) {
    absl::StatusOr<topology::CpuSet> reserved = parse_cpus("--reserve", flags.reserve);
    if (!reserved.ok()) return reserved.status();
    options.reserved = *std::move(reserved);
  }
  if (!flags.nic.empty()) options.nics = absl::StrSplit(flags.nic, ',', absl::SkipWhitespace());
  if (!flags.gpu.empty()) options.gpus = absl::StrSplit(flags.gpu, ',', absl::SkipWhitespace());
  if (!flags.gpu.empty() && options.gpus.empty()) return invalid(fmt::format("--gpu '{}': names no GPU", flags.gpu));
  if (!flags.nic.empty() && options.nics.empty()) return invalid(fmt::format("--nic '{}': names no NIC", flags.nic));
  return absl::OkStatus();
}

}  // namespace

void add_plugin_flag(CLI::App& command, std::string& folder) {
  command.add_option(both("plugin_dir"), folder, "absolute folder with transport plug-ins, looked at first")
      ->take_last();
}

absl::Status use_plugin_dir(const std::string& folder) {
  if (folder.empty()) return absl::OkStatus();
  const absl::Status set = transport::set_plugin_dir(folder);
  return set.ok() ? set : invalid(fmt::format("--plugin_dir: {}", message_of(set)));
}

void add_train_flags(CLI::App& command, TrainFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    // The last one counts: wrappers put their defaults first and what the user typed behind.
    CLI::Option* option = command.add_option(both(name), value, help)->capture_default_str()->take_last();
    if constexpr (std::is_same_v<decltype(value), uint64_t&>) option->check(check_whole_number);
    return option;
  };
  add("model", flags.model, "mlp or cnn (both MNIST), or linear (y = 2x + 10)");
  add("cnn_logits_relu", flags.cnn_logits_relu, "cnn: the tutorial's ReLU on its layer of 10; false: linear there");
  add("ps", flags.ps,
      "parameter servers of a local cluster, or among the tasks of a launcher; 0: train in this process, alone")
      ->each([&flags](const std::string&) { flags.ps_given = true; });
  add("workers", flags.workers, "workers of a local cluster")->each([&flags](const std::string&) {
    flags.workers_given = true;
  });
  add("towers", flags.towers, "copies of the model in each worker; 0: one for each GPU, one on CPUs");
  command.add_flag("--no-soft-placement,--no_soft_placement", flags.no_soft_placement,
                   "a tower without a GPU is an error");
  add("gpu", flags.gpu, "comma-separated GPUs to plan with, by index, name or PCI address; default: all");
  add("reduce", flags.reduce,
      "how a worker's towers average: host, nccl, or auto: nccl where each has a GPU of its own");
  add("gpu_direct", flags.gpu_direct,
      "how gradients leave a GPU: ipc (mapped by a ps on a GPU of this host), dmabuf or peermem (read by the network "
      "device), staged (through pinned host memory), auto: the first of these that works");
  add("ps_device", flags.ps_device, "where parameter servers keep parameters and optimizer state: host or gpu:N");
  add("shards", flags.shards, "shards (threads) in each parameter server");
  add("mode", flags.mode,
      "async; sync; ssp:K, async with no worker more than K steps ahead of the slowest; backup:B, sync without waiting "
      "for "
      "the last B gradients of a step");
  add("transport", flags.transport, "auto, or a list in order of preference: ucx,tcp");
  command.add_flag("--no-fallback,--no_fallback", flags.no_fallback, "the first refusal of a transport is an error");
  add("require", flags.require, "rdma: refuse paths that no RDMA device carries");
  add("ofi_provider", flags.ofi_provider, "libfabric's name of the provider to use: verbs");
  add("failback_secs", flags.failback_secs, "after a path was lost, how often better ones are tried; 0: never");
  command.add_flag("--verbose", flags.verbose, "say which paths are tried, and what registration costs");
  add_plugin_flag(command, flags.plugin_dir);
  add("epochs", flags.epochs, "passes of each worker over the training images");
  add("batch_size", flags.batch_size, "images in a batch");
  add("learning_rate", flags.learning_rate, "0: the model's own (mlp 0.001, cnn 0.02, linear 0.1)");
  add("optimizer", flags.optimizer,
      "sgd, momentum, nesterov or adam; auto: the model's own (cnn nesterov, the others sgd)");
  add("momentum", flags.momentum, "of momentum and nesterov");
  add("data_dir", flags.data_dir,
      "folder with the four IDX files of MNIST's names, or with train.tfrecords and test.tfrecords; default: the "
      "built-in MNIST");
  add("seed", flags.seed, "of initial values and of the order of the data");
  add("bucket_kib", flags.bucket_kib, "size of a bucket in KiB");
  command.add_flag("--checksums", flags.checksums, "CRC32C over every payload");
  add("checkpoint_dir", flags.checkpoint_dir, "ps: restore from and save to this folder");
  add("save_steps", flags.save_steps, "chief: checkpoint every so many of its steps; 0: not by steps");
  command
      .add_option(both("save_secs"), flags.save_secs,
                  "chief: checkpoint every so many seconds; 0: not by the clock; default: 600 without --save_steps")
      ->take_last();
  add("keep", flags.keep, "ps: how many complete checkpoints stay, older ones are removed; 0: all");
  add("log_every", flags.log_every, "batches between two lines");
  add("wait", flags.wait, "spin, block, or auto: spin when there is a core for each thread");
  command.add_flag("--no-pin,--no_pin", flags.no_pin, "bind no threads and no memory");
  add("cores", flags.cores, "cpus to use, as in taskset: 0-3,8; default: all that are allowed");
  add("reserve", flags.reserve, "cpus to leave free, for the system or another job");
  add("nic", flags.nic, "comma-separated NICs to plan with, by name, interface or PCI address; default: all");
  command.add_flag("--log_device_placement,--log-device-placement", flags.log_device_placement,
                   "print where everything goes, and why");
  add("join-timeout", flags.join_timeout_seconds, "how long a worker waits for the parameter servers to come up");
  add("heartbeat-timeout", flags.heartbeat_timeout_s, "ps: a worker unheard of for so long is lost");
  add("backup-ps", flags.backup_ps,
      "1: the second half of the ps tasks are backups of the first; each takes over when its task is lost, with no "
      "step lost");
  add("rejoin-timeout", flags.rejoin_timeout_s,
      "how long a worker waits for a parameter server that was lost to be started again; 0: not at all");
  add("min_workers", flags.min_workers, "ps: the run is given up when a loss leaves fewer workers");
  add("cluster", flags.cluster, "JSON file: {\"ps\": [\"host:port\"], \"worker\": [\"host:port\", ...]}");
  add("ps_hosts", flags.ps_hosts, "comma-separated host:port list, instead of --cluster");
  add("worker_hosts", flags.worker_hosts, "comma-separated host:port list, instead of --cluster");
  add("job_name", flags.job_name, "ps, worker or chief: run this one task of the cluster");
  add("task_index", flags.task_index, "which task of the job, from 0");
  add_monitoring_flags(command, flags.monitoring);
  add_security_flags(command, flags.security);
  add("rendezvous", flags.rendezvous,
      "tcp://HOST:PORT: where the first task of srun, mpirun or torchrun waits for the others; default: found out. "
      "etcd://HOST:2379/JOB or etcds://: find the other tasks there; --task_index and, but for one task, --ps and "
      "--workers may be left out");
  command.add_flag("--local,--alone", flags.local,
                   "a cluster on this host, whatever TF_CONFIG or a launcher's variables say");
  add("bind", flags.bind, "address to listen on (ps) or to send from (worker); default: the one in the cluster");
}

absl::StatusOr<TrainOptions> check_train_flags(const TrainFlags& flags) {
  TrainOptions options{.flags = flags};
  GRADRAIL_RETURN_IF_ERROR(check_numbers(flags));
  GRADRAIL_RETURN_IF_ERROR(check_cluster(flags, options));
  GRADRAIL_RETURN_IF_ERROR(check_alone(flags, options));
  GRADRAIL_RETURN_IF_ERROR(check_backup_ps(options));
  GRADRAIL_RETURN_IF_ERROR(check_placement(flags, options));
  GRADRAIL_RETURN_IF_ERROR(check_monitoring(flags.monitoring, trains_alone(options)));
  absl::StatusOr<ps::Security> security = read_security(flags.security);
  if (!security.ok()) return security.status();
  options.security = *std::move(security);
  options.towers = std::max(1u, flags.towers);
  const absl::StatusOr<gpu::Reduce> reduce = parse_reduce(flags.reduce);
  if (!reduce.ok()) return reduce.status();
  options.reduce = *reduce;
  GRADRAIL_RETURN_IF_ERROR(check_gpu_direct_word(flags.gpu_direct));
  const absl::StatusOr<ps::Mode> mode = ps::parse_mode(flags.mode);
  if (!mode.ok()) return invalid(fmt::format("--{}", message_of(mode.status())));
  options.mode = *mode;
  const size_t workers = options.local ? flags.workers : options.cluster.workers.size();
  if (mode->kind == ps::ModeKind::backup && mode->bound >= workers) {
    return invalid(fmt::format("--mode {}: of {} workers at most {} can be spared", flags.mode, workers, workers - 1));
  }
  const absl::StatusOr<ps::OptimizerKind> optimizer = chosen_optimizer(flags);
  if (!optimizer.ok()) return invalid(fmt::format("--optimizer: {}", message_of(optimizer.status())));
  options.optimizer.kind = *optimizer;
  options.optimizer.momentum = flags.momentum;
  options.optimizer.learning_rate = flags.learning_rate > 0.0f ? flags.learning_rate : model_rate(flags.model);
  GRADRAIL_RETURN_IF_ERROR(use_plugin_dir(flags.plugin_dir));
  absl::StatusOr<std::vector<std::string>> order = transport::parse_transport_order(flags.transport);
  if (!order.ok()) return invalid(fmt::format("--transport: {}", message_of(order.status())));
  options.transports = *std::move(order);
  const auto without_device = [](const std::string& name) {
    const absl::StatusOr<const transport::Transport*> found = transport::find_transport(name);
    return found.ok() && !(*found)->plugin;
  };
  if (flags.require == "rdma" && std::all_of(options.transports.begin(), options.transports.end(), without_device)) {
    return invalid(fmt::format("--transport {} --require rdma: none of these uses an RDMA device; name ucx or ofi",
                               flags.transport));
  }
  options.rdma_only = flags.transport == "auto";
  return options;
}

}  // namespace gradrail::tools
