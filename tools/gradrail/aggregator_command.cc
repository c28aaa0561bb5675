#include "tools/gradrail/aggregator_command.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "CLI/CLI.hpp"
#include "base/flags/number_in.h"
#include "base/flags/text_value.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/cluster_spec.h"
#include "tools/exit_codes.h"
#include "tools/monitor/metrics_server.h"
#include "tools/monitor/task_metrics.h"
#include "tools/monitor/task_monitor.h"
#include "tools/train/signal_thread.h"
#include "tools/train/task.h"
#include "tools/train/train_options.h"
#include "transport/negotiate.h"
#include "worker/aggregator/aggregator.h"

namespace gradrail::tools {
namespace {

/// Idle sessions end after a minute.
constexpr auto kTick = std::chrono::milliseconds(200);

/// Errors  INVALID_ARGUMENT: also without a port, because the default port is that of a ps.
absl::Status check_bind(const std::string& text) {
  GRADRAIL_RETURN_IF_ERROR(ps::parse_host_port(text).status());
  if (!text.ends_with(']') && text.find(':') != std::string::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} has no port: give host:port, such as {}:2300; port 0: any, which it prints", text, text));
}

/// "host:port" at which the workers reach this task.
absl::StatusOr<std::string> address_of(const AggregatorFlags& flags) {
  if (flags.bind.empty() == flags.cluster.empty())
    return usage_error(absl::InvalidArgumentError(
        "aggregator: give either --bind HOST:PORT, or --cluster FILE and --task_index INDEX"));
  if (!flags.bind.empty() && flags.task_index >= 0)
    return usage_error(absl::InvalidArgumentError(
        fmt::format("--task_index {}: has no effect with --bind; omit one of them", flags.task_index)));
  if (!flags.bind.empty()) return flags.bind;
  if (flags.task_index < 0)
    return usage_error(absl::InvalidArgumentError("--task_index is missing (which task of job 'aggregator' is this?)"));
  GRADRAIL_ASSIGN_OR_RETURN(const ps::ClusterSpec cluster, ps::read_cluster_file(flags.cluster));
  const auto index = static_cast<uint64_t>(flags.task_index);
  if (index < cluster.aggregators.size()) return cluster.aggregators[index];
  return absl::InvalidArgumentError(fmt::format("--task_index {}: {} has {} task{} of job 'aggregator', counted from 0",
                                                flags.task_index, flags.cluster, cluster.aggregators.size(),
                                                cluster.aggregators.size() == 1 ? "" : "s"));
}

/// The summary of an aggregator, as that of a ps.
void print_end(const aggregator::AggregatorStats& stats) {
  print_line(fmt::format("stopped on request, with {} session{} and {} attached worker{} (counted for each shard)",
                         stats.sessions, stats.sessions == 1 ? "" : "s", stats.workers, stats.workers == 1 ? "" : "s"));
  for (const ps::PathTraffic& path : stats.paths)
    print_line(fmt::format("path {}: {} bytes in, {} bytes out", path.path, path.bytes_in, path.bytes_out));
}

}  // namespace

void add_aggregator_flags(CLI::App& command, AggregatorFlags& flags) {
  const auto both = [](std::string_view name) {
    std::string dashes(name);
    std::replace(dashes.begin(), dashes.end(), '_', '-');
    return dashes == name ? fmt::format("--{}", name) : fmt::format("--{},--{}", name, dashes);
  };
  command.option_defaults()->group("Cluster");
  command
      .add_option("--bind", flags.bind,
                  "host:port at which workers reach this aggregator; port 0: any, which it prints")
      ->transform(accepted_by(check_bind))
      ->take_last();
  command
      .add_option("--cluster", flags.cluster,
                  "in the place of --bind: cluster description with the address of this task in the job aggregator")
      ->take_last();
  command
      .add_option(both("task_index"), flags.task_index, "--cluster: index of this task in the job aggregator, from 0")
      ->transform(NumberIn<int64_t>(0))
      ->take_last();
  command.option_defaults()->group("Transport");
  command.add_option("--transport", flags.transport, "auto, or a list in order of preference: ucx,tcp")
      ->capture_default_str()
      ->take_last();
  command.add_option(both("ofi_provider"), flags.ofi_provider, "name of the libfabric provider, such as verbs")
      ->take_last();
  command
      .add_option(both("path_timeout"), flags.path_timeout_s,
                  "seconds without an acknowledgement after which a data connection over a network counts as lost")
      ->transform(NumberIn(1u, 3600u))
      ->capture_default_str()
      ->take_last();
  command
      .add_option(both("slot_mib"), flags.slot_mib,
                  "MiB of a shard for gradients of one worker on their way; 0: room for all")
      ->transform(NumberIn(0u, 1u << 20))
      ->capture_default_str()
      ->take_last();
  add_plugin_flag(command, flags.plugin_dir);
  add_security_flags(command, flags.security);
  command.add_flag("--encrypt-data,--encrypt_data", flags.security.security.encrypt_data,
                   "encrypt gradients and parameters between hosts; needs --secret-file or TLS, equal in all tasks");
  add_metrics_flags(command, flags.monitoring);
}

absl::Status run_aggregator(const AggregatorFlags& flags) {
  block_signals();  // before any library starts a thread
  GRADRAIL_ASSIGN_OR_RETURN(const std::string listen_address, address_of(flags));
  aggregator::AggregatorOptions options = {.listen_address = listen_address,
                                           .rdma_only = flags.transport == "auto",
                                           .ofi_provider = flags.ofi_provider,
                                           .path_timeout = std::chrono::seconds(flags.path_timeout_s),
                                           .slot_bytes = uint64_t{flags.slot_mib} << 20,
                                           .log = print_line};
  GRADRAIL_ASSIGN_OR_RETURN(options.security, read_security(flags.security));
  GRADRAIL_RETURN_IF_ERROR(usage_error(ps::check_encryption(options.security)));
  GRADRAIL_RETURN_IF_ERROR(use_plugin_dir(flags.plugin_dir));
  absl::StatusOr<std::vector<std::string>> order = transport::parse_transport_order(flags.transport);
  if (!order.ok()) return absl::InvalidArgumentError(fmt::format("--transport: {}", message_of(order.status())));
  options.transports = *std::move(order);
  start_log("aggregator");
  SignalThread signals(SignalThread::Task::kOwn);
  GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<aggregator::Aggregator> served,
                            aggregator::Aggregator::start(options));
  GRADRAIL_ASSIGN_OR_RETURN(const ps::HostPort address, ps::parse_host_port(listen_address));
  print_line(fmt::format("aggregator listens on {}", ps::to_string({address.host, served->port()})));
  GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<MetricsServer> metrics,
                            serve_metrics(flags.monitoring, {.name = "aggregator", .print = print_line},
                                          [&served] { return aggregator_metrics(served->stats()); }));
  while (!signals.stop().load()) {
    std::this_thread::sleep_for(kTick);
    served->end_idle_sessions();
  }
  print_end(served->stats());
  return absl::OkStatus();
}

}  // namespace gradrail::tools
