#include "tools/train/train_options.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/exit_codes.h"
#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "launch/start/resolve_cluster.h"
#include "launch/task/backup_ps.h"
#include "ps/protocol/training.h"
#include "tools/security_flags.h"
#include "transport/negotiate.h"
#include "transport/plugin_loader.h"
#include "transport/rails/rails_setting.h"
#include "worker/models/workload.h"

namespace gradrail::tools {
namespace {

/// A request that needs a parameter server is an error where there is none.
absl::Status check_alone(TrainOptions& options) {
  if (options.start.ps > 0) return absl::OkStatus();
  if (!options.start.local)
    return absl::InvalidArgumentError(
        "--ps 0 trains in this process alone: leave out --cluster, --ps_hosts, --worker_hosts and TF_CONFIG");
  if (options.start.workers_given && options.start.workers != 1) {
    return absl::InvalidArgumentError(
        fmt::format("--workers {}: with --ps 0 this process is the only worker (--towers {} computes as much)",
                    options.start.workers, options.start.workers));
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
  if (options.start.shards != 1) {
    return absl::InvalidArgumentError(
        fmt::format("--shards {}: parameter servers have shards, and with --ps 0 there is none", options.start.shards));
  }
  if (options.start.security.encrypt_data) {
    return usage_error(
        absl::InvalidArgumentError("--encrypt-data: it encrypts the data between tasks, and with --ps 0 there is no "
                                   "other task; leave out the flag"));
  }
  options.start.workers = 1;
  options.start.task = {"worker", 0};
  return absl::OkStatus();
}

absl::Status check_placement(const launch::TaskOptions& start) {
  if (!start.no_pin || (!start.cores.has_value() && start.reserved.empty())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--no-pin binds nothing, so that --cores and --reserve cannot be kept: give one or the other");
}

}  // namespace

absl::Status use_plugin_dir(const std::string& folder) {
  absl::Status set = folder.empty() ? transport::check_plugin_variable() : transport::set_plugin_dir(folder);
  if (set.ok()) return set;
  if (!folder.empty()) set = absl::InvalidArgumentError(fmt::format("--plugin_dir: {}", message_of(set)));
  // A relative path is wrong on each host; a missing folder is a property of this host.
  const char* const variable = std::getenv("GRADRAIL_PLUGIN_DIR");
  const std::string named = folder.empty() && variable != nullptr ? variable : folder;
  return named.starts_with('/') ? set : usage_error(set);
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
  if (options.start.bind.text.empty()) return absl::OkStatus();
  const absl::Status own = check_own_address(options.start.bind.host);
  return own.ok() ? own : absl::FailedPreconditionError(fmt::format("--bind {}", message_of(own)));
}

/// A local cluster chooses the addresses of its ps.
absl::Status check_local_bind(const launch::TaskOptions& start) {
  if (start.bind.text.empty()) return absl::OkStatus();
  return usage_error(absl::InvalidArgumentError(fmt::format(
      "--bind {}: the ps of a local cluster listen on 127.0.0.1, on free ports; omit --bind", start.bind.text)));
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
  if (!options.start.security.encrypt_data) return absl::OkStatus();
  const auto carries_in_clear = [](const std::string& name) {
    const absl::StatusOr<const transport::Transport*> found = transport::find_transport(name);
    return found.ok() && (*found)->plugin;
  };
  if (options.start.require_rdma)
    return absl::InvalidArgumentError("--encrypt-data --require rdma: RDMA carries data unencrypted; give one of them");
  const std::vector<std::string>& order = options.transports;
  if (!std::all_of(order.begin(), order.end(), carries_in_clear)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("--encrypt-data: {} carries data unencrypted; give --transport tcp", fmt::join(order, ", ")));
}

/// Whether this process is worker 0, or starts it.
bool may_be_chief(const launch::TaskOptions& start) {
  if (start.local) return true;
  if (!start.launch) return start.task.job == "worker" && start.task.index == 0;
  return start.launch->rank == start.ps;
}

/// A ps that does not know the others cannot share a folder with them, or replace one of them.
absl::Status check_sparse_ps(const TrainOptions& options) {
  const std::vector<std::string>& ps = options.start.cluster.ps;
  if (std::find(ps.begin(), ps.end(), kUnknownAddress) == ps.end()) return absl::OkStatus();
  if (options.checkpoint_dir.empty() && options.start.backup_ps == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: \"sparseCluster\" of ps task {} leaves out the other ps tasks: give the addresses of all",
                  options.start.backup_ps > 0 ? "--backup-ps 1" : "--checkpoint_dir " + options.checkpoint_dir,
                  options.start.task.index));
}

absl::StatusOr<TrainOptions> check_train_options(TrainOptions options) {
  if (!options.cnn_logits_relu && options.model != "cnn")
    return absl::InvalidArgumentError(fmt::format("--cnn_logits_relu is of --model cnn; this is {}", options.model));
  GRADRAIL_RETURN_IF_ERROR(launch::resolve_cluster(options.start));
  if (is_evaluator(options.start)) return options;  // it does nothing, so that its other flags have no effect
  GRADRAIL_RETURN_IF_ERROR(check_alone(options));
  GRADRAIL_RETURN_IF_ERROR(check_sparse_ps(options));
  GRADRAIL_RETURN_IF_ERROR(check_backup_ps(options.start));
  GRADRAIL_RETURN_IF_ERROR(set_parent(options));
  GRADRAIL_RETURN_IF_ERROR(check_placement(options.start));
  GRADRAIL_RETURN_IF_ERROR(check_monitoring(options.monitoring, trains_alone(options.start)));
  GRADRAIL_RETURN_IF_ERROR(read_secret(options.start.security, options.start.secret_file));
  GRADRAIL_RETURN_IF_ERROR(usage_error(check_encryption(options.start.security)));
  if (!worker::computes_on_devices(options.model))
    options.start.why_no_gpu = fmt::format("model {} computes on CPUs only", options.model);
  // 0 asks for one per GPU: run_worker() replaces it once the plan is known.
  options.start.tower_count = std::max(1u, options.start.towers);
  if (options.start.cluster.sparse && options.start.mode.waits()) {
    return absl::InvalidArgumentError(fmt::format(
        "--mode {}: it waits for every worker, and the cluster description leaves out workers: name all, or use async",
        mode_text(options.start.mode)));
  }
  const size_t workers = options.start.local ? options.start.workers : options.start.cluster.workers.size();
  options.start.mode.worker_count = static_cast<uint32_t>(workers);
  GRADRAIL_RETURN_IF_ERROR(ps::check_bound(options.start.mode));
  // Only a ps uses the flag, and a worker with a sparse description does not know all workers.
  if (options.start.task.job != "worker" && !options.start.cluster.sparse)
    GRADRAIL_RETURN_IF_ERROR(check_min_workers(options, workers));
  GRADRAIL_RETURN_IF_ERROR(set_optimizer(options));
  GRADRAIL_RETURN_IF_ERROR(usage_error(transport::rails::check_lanes(options.rails, options.streams)));
  // Before the list of transports: that list loads the plug-ins.
  GRADRAIL_RETURN_IF_ERROR(use_plugin_dir(options.plugin_dir));
  absl::StatusOr<std::vector<std::string>> order = transport::parse_transport_order(options.transport);
  if (!order.ok()) return absl::InvalidArgumentError(fmt::format("--transport: {}", message_of(order.status())));
  options.transports = *std::move(order);
  // Only plug-ins can use RDMA devices.
  const auto without_device = [](const std::string& name) {
    const absl::StatusOr<const transport::Transport*> found = transport::find_transport(name);
    return found.ok() && !(*found)->plugin;
  };
  if (options.start.require_rdma && trains_alone(options.start))
    return absl::InvalidArgumentError("--ps 0 --require rdma: without a ps no path exists; omit one of the flags");
  if (options.start.require_rdma && std::all_of(options.transports.begin(), options.transports.end(), without_device)) {
    return absl::InvalidArgumentError(fmt::format(
        "--transport {} --require rdma: none of these uses an RDMA device; name ucx or ofi", options.transport));
  }
  GRADRAIL_RETURN_IF_ERROR(usage_error(check_encrypted_transports(options)));
  // A named plug-in may also carry bytes over sockets; "auto" uses one only with an RDMA device.
  options.rdma_only = options.transport == "auto";
  // Here once for all tasks of a local cluster; the other tasks know their job later.
  if (options.start.local) {
    GRADRAIL_RETURN_IF_ERROR(check_local_bind(options.start));
    GRADRAIL_RETURN_IF_ERROR(check_host_of_worker(options));
    GRADRAIL_RETURN_IF_ERROR(check_metrics_ports(options.monitoring, options.start.ps + options.start.workers));
  }
  // Worker 0 writes it. The other tasks of other hosts need not have its folder.
  if (may_be_chief(options.start)) GRADRAIL_RETURN_IF_ERROR(check_timeline(options.monitoring));
  GRADRAIL_RETURN_IF_ERROR(make_logs_folder(options.monitoring));
  return options;
}

}  // namespace gradrail::tools
