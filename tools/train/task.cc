#include "tools/train/task.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gradrail/client.h"
#include "launch/placement/affinity_binder.h"
#include "launch/task/backup_ps.h"
#include "launch/task/console.h"
#include "launch/task/start_guard.h"
#include "ps/server.h"
#include "tools/monitor/model_graph.h"
#include "tools/monitor/task_monitor.h"
#include "tools/train/local_variables.h"
#include "tools/train/progress_bar.h"
#include "tools/train/tower_devices.h"
#include "transport/rails/rails_setting.h"
#include "worker/trainer/client_variables.h"
#include "worker/trainer/tower.h"
#include "worker/tree/tree_parent.h"

namespace gradrail::tools {
namespace {

/// A ps stays longer than its workers look for another one: the end of the first one reaches the other.
constexpr auto kAwayLonger = std::chrono::seconds(30);
/// Behind the stop of a launched run, which signals its ps and workers at once. Slurm kills after 30 s.
constexpr auto kGracePeriod = std::chrono::seconds(20);

/// The address a ps listens on: --bind (host, or host:port), else the cluster's.
std::string listen_address(const TrainOptions& options) {
  const std::string& ours = options.cluster.ps[options.task.index];
  if (options.bind.text.empty()) return ours;
  if (options.bind.has_port) return options.bind.text;
  const absl::StatusOr<HostPort> address = parse_host_port(ours);
  return to_string({options.bind.host, address.ok() ? address->port : kDefaultPort});
}

bool is_name(const std::string& host) {
  return host != "localhost" && !is_ip_address(host, AF_INET) && !is_ip_address(host, AF_INET6);
}

/// The addresses of a host name, as " (127.0.1.1)"; "" for an address.
std::string resolved_text(const std::string& host) {
  if (!is_name(host)) return "";
  const absl::StatusOr<std::vector<NetAddress>> found = resolve(host, 0);
  std::vector<std::string> addresses;
  for (const NetAddress& each : found.value_or(std::vector<NetAddress>())) addresses.push_back(each.host());
  return addresses.empty() ? "" : fmt::format(" ({})", fmt::join(addresses, ", "));
}

/// Debian's /etc/hosts has the own name of a host as 127.0.1.1. A ps there is reached from its own host alone.
void warn_of_loopback_name(const TrainOptions& options, const std::string& host) {
  if (options.local || !is_name(host)) return;
  const absl::StatusOr<std::vector<NetAddress>> found = resolve(host, 0);
  if (!found.ok() || !std::all_of(found->begin(), found->end(), [](const auto& each) { return each.is_loopback(); }))
    return;
  const auto is_elsewhere = [&](const std::string& address) { return launch::host_of(address) != host; };
  const std::vector<std::string>& servers = options.cluster.ps;
  const std::vector<std::string>& workers = options.cluster.workers;
  if (std::none_of(servers.begin(), servers.end(), is_elsewhere) &&
      std::none_of(workers.begin(), workers.end(), is_elsewhere))
    return;
  spdlog::warn(
      "the name '{}' is {} on this host, which no other host can reach: name an address of the network in the "
      "cluster or with --bind, or correct /etc/hosts",
      host, found->front().host());
}

/// The flag has been parsed before.
transport::rails::RailsSetting rails_setting(const TrainOptions& options) {
  return transport::rails::parse_rails(options.rails).value_or(transport::rails::RailsSetting{});
}

/// A worker that is bound to one address uses one rail, unless --rails names several.
bool uses_rails(const TrainOptions& options) {
  const transport::rails::RailsSetting setting = rails_setting(options);
  return !setting.off && (options.bind.text.empty() || !setting.hosts.empty());
}

/// The same text in all ps tasks of a run: it is the owner of their checkpoint folder.
std::string run_name(const TrainOptions& options) {
  // The tasks of a local cluster are children of one process, and their ports are not known yet.
  if (options.local) return options.local_run;
  // Their tasks have no addresses before they listen, and others after a return through etcd.
  if (options.launch.has_value()) return fmt::format("{} at {}", options.launch->job, options.launch->rendezvous);
  if (options.rendezvous.is_etcd()) return fmt::format("etcd job {}", options.rendezvous.job);
  return fmt::format("ps hosts {}", fmt::join(options.cluster.ps, ","));
}

bool is_returning_ps_possible(const TrainOptions& options) { return !options.local || options.max_restarts > 0; }

/// A stop on request is not a failure, even if the task had not started its work.
absl::Status stopped_by_signal(const absl::Status& status, const launch::SignalThread& signals) {
  if (!absl::IsCancelled(status) || !signals.stop().load()) return status;
  spdlog::warn("{}", message_of(status));
  return absl::OkStatus();
}

worker::WorkloadOptions workload_options(const TrainOptions& options) {
  return {.model = options.model,
          .batch_size = options.batch_size,
          .data_dir = options.data_dir,
          .seed = options.seed,
          .task_index = options.task.index + options.first_worker,
          .cnn_logits_relu = options.cnn_logits_relu,
          .tower_count = options.tower_count,
          .push = options.push};
}

/// A worker's model, on the devices of its towers.
struct Model {
  std::unique_ptr<TowerDevices> devices;
  std::unique_ptr<worker::Workload> workload;
  std::string averaged_by = "host";  ///< several towers
};

/// The options of a worker, now that the plan is there: the plan has the number of towers.
TrainOptions planned(TrainOptions options, const launch::HostPlan& plan) {
  options.tower_count = tower_count(plan, options);
  return options;
}

absl::StatusOr<std::unique_ptr<worker::Workload>> make_tower(const worker::WorkloadOptions& options, size_t tower,
                                                             TowerDevices& devices) {
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<gpu::Compute> device, devices.open(tower));
  // Asked now: the call below takes the device.
  const bool on_gpu = device != nullptr;
  absl::StatusOr<std::unique_ptr<worker::Workload>> workload = worker::make_workload(options, std::move(device));
  if (!on_gpu || !absl::IsFailedPrecondition(workload.status())) return workload;
  // The GPU opened, and computes nothing: a library of its own is missing.
  GRADRAIL_RETURN_IF_ERROR(devices.instead_of(tower, workload.status()));
  return worker::make_workload(options, nullptr);
}

absl::Status make_towers(const TrainOptions& options, const launch::HostPlan& plan, launch::AffinityBinder& binder,
                         Model& model) {
  worker::WorkloadOptions common = workload_options(options);
  // Loaded once for all towers, which only read it.
  GRADRAIL_ASSIGN_OR_RETURN(common.data, worker::load_data(common));
  const auto on_tower = [&](size_t tower) {
    worker::WorkloadOptions own = common;
    own.tower = tower;
    own.threads = compute_threads(plan, options, tower);
    return make_tower(own, tower, *model.devices);
  };
  GRADRAIL_ASSIGN_OR_RETURN(
      std::unique_ptr<worker::Towers> towers,
      worker::Towers::create(
          options.tower_count, on_tower, [&](size_t tower) { binder.bind(tower); }, options.reduce));
  model.averaged_by = towers->averaged_by();
  model.workload = std::move(towers);
  return absl::OkStatus();
}

/// One tower computes in this thread, several each in its own.
absl::StatusOr<Model> make_model(const TrainOptions& options, const launch::HostPlan& plan,
                                 launch::AffinityBinder& binder) {
  Model model{.devices = std::make_unique<TowerDevices>(plan, options), .workload = nullptr};
  if (options.tower_count > 1 || options.reduce == gpu::Reduce::nccl) {
    GRADRAIL_RETURN_IF_ERROR(make_towers(options, plan, binder, model));
    return model;
  }
  worker::WorkloadOptions one = workload_options(options);
  one.threads = compute_threads(plan, options, 0);
  binder.bind(0);  // what the model's data are read into lies where it is first touched
  absl::StatusOr<std::unique_ptr<worker::Workload>> workload = make_tower(one, 0, *model.devices);
  binder.unbind(0);  // the control plane's threads are born next, and are to keep off the cores that compute
  if (!workload.ok()) return workload.status();
  model.workload = *std::move(workload);
  return model;
}

/// The end of the summary: where everything was.
std::vector<std::string> where_it_was(const launch::AffinityBinder& binder, const Model& model,
                                      launch::AffinityBinder::UnitMemory variables, const TrainOptions& options) {
  std::vector<std::string> lines = model.devices->summary(model.averaged_by);
  if (const std::string launches = model.workload->launches(); !launches.empty()) lines.push_back("Steps: " + launches);
  // The variables lie where the first tower is; the others have nothing that a summary could show.
  std::vector<launch::AffinityBinder::UnitMemory> units(options.tower_count);
  units[0] = std::move(variables);
  for (std::string& line : binder.summary(units, options.verbose)) lines.push_back(std::move(line));
  return lines;
}

MonitoredTask monitored(const TrainOptions& options) {
  const bool is_ps = options.task.job == "ps";
  // Ports of metrics: those of the ps come first, then those of the workers.
  const uint32_t before = is_ps ? 0 : options.ps;
  return {.name = fmt::format("{}/{}", options.task.job, options.task.index),
          .place_on_host = static_cast<uint16_t>(options.local ? before + options.task.index : options.place_on_host),
          .print = launch::print_line};
}

/// The settings that workers of one synchronous run share, beyond those that the ps checks by itself.
/// As text: the ps compares it whole, and shows both values if they differ.
std::string agreement(const TrainOptions& options) {
  std::string text =
      fmt::format("--epochs {} --batch_size {} --seed {}", options.epochs, options.batch_size, options.seed);
  if (options.tower_count > 1) text += fmt::format(" --towers {}", options.tower_count);
  if (!options.cnn_logits_relu) text += " --cnn_logits_relu false";
  return text;
}

/// As TensorFlow's MonitoredTrainingSession: by the clock unless steps were asked for.
worker::SaveEvery save_every(const TrainOptions& options) {
  const double seconds = options.save_secs.value_or(options.save_steps > 0 ? 0.0 : kDefaultSaveSecs);
  return {.time = from_seconds(seconds), .steps = options.save_steps};
}

absl::Status train(const TrainOptions& options, const launch::SignalThread& signals, worker::Variables& variables,
                   worker::Workload& workload, Summaries* summaries, const Client* client,
                   std::function<std::vector<std::string>()> more) {
  const bool is_cnn = options.model == "cnn";
  if (summaries != nullptr)
    summaries->graph(model_graph(options.model, workload.schema(), workload.batch_size(), options.cnn_logits_relu));
  ProgressBar bar(isatty(STDOUT_FILENO) != 0);
  return stopped_by_signal(worker::train(variables, workload,
                                         {.epochs = options.epochs,
                                          .seed = options.seed,
                                          .log_every = options.log_every,
                                          .save_every = save_every(options),
                                          .verbose = options.verbose,
                                          .step_line = is_cnn ? worker::StepLine::kRate : worker::StepLine::kEpochs,
                                          .towers = options.tower_count},
                                         {.line = [&](const std::string& line) { bar.print_above(line); },
                                          .progress =
                                              [&](const worker::Progress& progress) {
                                                bar.show(progress);
                                                if (summaries == nullptr) return;
                                                summaries->step(progress, workload, client);
                                              },
                                          .evaluated =
                                              [&](uint64_t global_step, float accuracy) {
                                                if (summaries != nullptr) summaries->evaluated(global_step, accuracy);
                                              },
                                          .more = std::move(more)},
                                         signals.stop()),
                           signals);
}

/// What all connections of a task have in common: those of a worker to the ps tasks, and of a node to its parent.
ClientOptions connection_options(const TrainOptions& options, const launch::HostPlan& plan,
                                 const launch::SignalThread& signals) {
  return {.transport = {.order = options.transports,
                        .rdma_only = options.rdma_only,
                        .ofi_provider = options.ofi_provider,
                        .path_timeout = std::chrono::seconds(options.path_timeout_s),
                        .fallback = !options.no_fallback,
                        .require_rdma = options.require_rdma,
                        .failback = from_seconds(options.failback_secs),
                        .checksums = options.checksums,
                        .bind_host = options.bind.host,
                        .rails = uses_rails(options),
                        .streams = transport::rails::parse_streams(options.streams).value_or(0),
                        .wait = wait_policy(plan, options)},
          .security = options.security,
          .recovery = {.join_timeout = std::chrono::seconds(options.join_timeout_seconds)},
          .hooks = {.stop = &signals.stop()}};
}

/// The connection of a node to the next level of its tree. TreeParent adds the agreement of the run.
ClientOptions parent_options(const TrainOptions& options, const launch::HostPlan& plan,
                             const launch::SignalThread& signals) {
  ClientOptions client = connection_options(options, plan, signals);
  client.cluster = options.parent;
  client.task_index = options.parent_index;
  return client;
}

/// `model` and what the functions call outlive the client.
absl::StatusOr<ClientOptions> worker_options(const TrainOptions& options, const launch::HostPlan& plan,
                                             const launch::SignalThread& signals, const Model& model,
                                             launch::AffinityBinder& binder, FlightLog& flight) {
  ClientOptions client = connection_options(options, plan, signals);
  client.cluster = without_backups(options);
  client.task_index = options.task.index;
  client.mode = options.mode;
  client.optimizer = options.optimizer;
  client.bucket_bytes = options.bucket_kib * 1024;
  client.agreement = agreement(options);
  client.compression = {.push = options.push, .returns = options.returns};
  client.recovery.backups = backups(options);
  client.recovery.rejoin_timeout =
      std::chrono::seconds(is_returning_ps_possible(options) ? options.rejoin_timeout_s : 0);
  client.recovery.ps_address = options.ps_address;
  GRADRAIL_ASSIGN_OR_RETURN(client.placement.device, model.devices->device_block(*model.workload));
  client.placement.gpu_transfers = model.devices->ways();
  client.placement.require_device = model.devices->forbids_staging();
  client.placement.place_memory = [&](const MemorySpan& memory) { binder.bind_memory(0, memory); };
  client.hooks.marks = options.monitoring.marks();
  client.hooks.dump = [&](const std::vector<Mark>& marks) { flight.answer(marks); };
  client.hooks.dump_signals = &signals.dumps();
  return client;
}

/// A node without its parent has nothing to serve: it waits for the parent, and begins again as if it were restarted.
absl::Status serve_node(ClientOptions parent, const launch::SignalThread& signals,
                        const std::function<absl::Status(bool is_first)>& serve) {
  bool is_first = true;
  while (true) {
    const absl::Status reached = tree::wait_for_parent(parent);
    if (!reached.ok()) return stopped_by_signal(reached, signals);
    const absl::Status served = serve(std::exchange(is_first, false));
    if (!absl::IsUnavailable(served) || signals.stop().load()) return served;
    spdlog::warn("{}; this node begins again", message_of(served));
  }
}

/// Serves one run.
absl::Status serve(const TrainOptions& options, const ps::Server::Options& server_options, const std::string& listen,
                   launch::SignalThread& signals, launch::StartGuard& guard, launch::AffinityBinder& binder,
                   FlightLog& flight, const std::function<void(uint16_t)>& listening) {
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<ps::Server> server, ps::Server::start(server_options));
  GRADRAIL_ASSIGN_OR_RETURN(const auto monitor, PsMonitor::start(options.monitoring, monitored(options), *server));
  // Declared after the server: the waker is destroyed first, so no signal can wake a server that no longer exists.
  const launch::SignalThread::Waker waker(signals, [&] { server->wake(); });
  // The supervisor or the rendezvous sends the port to the workers: they can connect from now on.
  guard.end();
  if (listening) listening(server->port());
  if (!options.local)
    launch::print_comment(fmt::format(
        "ps/{} listens on {}", options.task.index,
        to_string({.host = launch::host_of(listen), .port = server->port()}) + resolved_text(launch::host_of(listen))));
  warn_of_loopback_name(options, launch::host_of(listen));
  // Only a launcher stops ps and workers at the same moment; else a stop of a ps counts at once.
  absl::Status finished = server->wait_finished(signals.stop(), options.launch ? kGracePeriod : Duration::zero());
  if (!finished.ok()) flight.write(server->marks(), std::string(message_of(finished)));
  for (const std::string& line : server->summary()) launch::print_line(line);
  std::vector<launch::AffinityBinder::UnitMemory> memory;
  for (const MemorySpan& parameters : server->parameters_memory()) memory.push_back({parameters});
  for (const std::string& line : binder.summary(memory, options.verbose)) launch::print_line(line);
  return finished;
}

absl::Status run_ps(const TrainOptions& options, const launch::HostPlan& plan, launch::SignalThread& signals,
                    const std::function<void(uint16_t)>& listening, const std::function<void(uint32_t)>& joined) {
  // First: each line of the log names the task.
  const std::string name = fmt::format("ps/{}", options.task.index);
  start_log(name);
  launch::StartGuard guard(name);
  signals.accept_stop();
  launch::AffinityBinder binder(plan, options);  // before anything else: threads inherit
  signals.follow_cpus();
  const std::string& advertised = options.cluster.ps[options.task.index];
  const std::string listen = listen_address(options);
  std::shared_ptr<tree::TreeParent> parent;
  ClientOptions to_parent;
  if (!options.parent.ps.empty()) {
    to_parent = parent_options(options, plan, signals);
    GRADRAIL_ASSIGN_OR_RETURN(parent, tree::TreeParent::start(to_parent));
  }
  FlightLog flight(options.monitoring, fmt::format("ps/{}", options.task.index));
  const ps::Server::Options server_options = {
      .task_index = options.task.index,
      .listen_address = listen,
      .advertised_host = launch::host_of(advertised),
      .shard_count = options.shards,
      .transports = options.transports,
      .rails = transport::rails::rails_of(rails_setting(options), launch::host_of(listen), !options.bind.text.empty()),
      .rails_named = !rails_setting(options).hosts.empty(),
      .data_port = options.data_port,
      .rdma_only = options.rdma_only,
      .ofi_provider = options.ofi_provider,
      .path_timeout = std::chrono::seconds(options.path_timeout_s),
      .worker_names = options.cluster.workers,
      .wait = wait_policy(plan, options),
      .replication_peer = replication_peer(options),
      .find_replication_peer = find_replication_peer(options),
      .begins_as_backup = begins_as_backup(options),
      .parent = parent,
      .device = options.ps_device,
      .checkpoint_dir = options.checkpoint_dir,
      .run_name = run_name(options),
      .keep_checkpoints = options.keep,
      .heartbeat_timeout = std::chrono::seconds(options.heartbeat_timeout_s),
      .min_workers = options.min_workers,
      .away_limit = std::chrono::seconds(options.rejoin_timeout_s) + kAwayLonger,
      .console = launch::print_line,
      .on_join = joined,
      .on_shard_thread = [&](uint32_t shard) { binder.bind(shard); },
      .place_memory = [&](uint32_t shard, const MemorySpan& memory) { binder.bind_memory(shard, memory); },
      .slot_bytes = uint64_t{options.slot_mib} << 20,
      .marks = options.monitoring.marks(),
      .dump = [&](const std::vector<Mark>& marks) { flight.answer(marks); },
      .dump_signals = &signals.dumps(),
      .security = options.security};
  if (parent == nullptr) return serve(options, server_options, listen, signals, guard, binder, flight, listening);
  return serve_node(to_parent, signals, [&](bool is_first) {
    return serve(options, server_options, listen, signals, guard, binder, flight,
                 is_first ? listening : std::function<void(uint16_t)>());
  });
}

absl::Status run_worker(const TrainOptions& given, const launch::HostPlan& plan, launch::SignalThread& signals,
                        const std::function<void()>& joined) {
  const TrainOptions options = planned(given, plan);
  const std::string name = fmt::format("worker/{}", options.task.index);
  start_log(name);
  launch::StartGuard guard(name);
  signals.accept_stop();
  launch::AffinityBinder binder(plan, options);
  signals.follow_cpus();
  // Before the data, which may take minutes to read.
  GRADRAIL_RETURN_IF_ERROR(check_host_of_worker(options));
  // Before join(): the schema comes from the model, and a wrong data folder must not cost a membership.
  GRADRAIL_ASSIGN_OR_RETURN(const Model model, make_model(options, plan, binder));
  GRADRAIL_ASSIGN_OR_RETURN(const auto monitor, WorkerMonitor::start(options.monitoring, monitored(options)));
  GRADRAIL_ASSIGN_OR_RETURN(const auto summaries,
                            open_summaries(options.monitoring, options.task.index, options.log_every));
  GRADRAIL_ASSIGN_OR_RETURN(const auto timeline, open_timeline(options.monitoring, options.task.index));
  FlightLog flight(options.monitoring, fmt::format("worker/{}", options.task.index));
  GRADRAIL_ASSIGN_OR_RETURN(ClientOptions client_options,
                            worker_options(options, plan, signals, model, binder, flight));
  absl::StatusOr<std::unique_ptr<Client>> client = Client::join(std::move(client_options), model.workload->schema());
  if (!client.ok()) {
    absl::Status stopped = stopped_by_signal(client.status(), signals);
    if (stopped.ok()) launch::print_line("Stopped before the first step: nothing was trained");
    return stopped;
  }
  guard.end();
  if (joined) joined();
  // Declared after the client, hence removed before it: no scrape reads a client that no longer exists.
  const WorkerMonitor::Watch watch(*monitor, **client);
  const launch::SignalThread::Waker waker(signals, [&] { (*client)->wake(); });
  // The ps reads the gradients on the GPU: the copy to the host is not needed.
  if ((*client)->device().is_used()) model.workload->stay_on_device();
  // Not before join(): the threads of the control plane started there and must not inherit the binding.
  if (options.tower_count == 1) binder.bind(0);
  // Checked after join(): each ps announces there whether it has a folder.
  const bool wants_checkpoints =
      options.save_steps > 0 || options.save_secs.value_or(0.0) > 0.0 || !options.checkpoint_dir.empty();
  if (wants_checkpoints && !(*client)->checkpoints().is_enabled()) {
    return absl::FailedPreconditionError(
        fmt::format("{}: not every ps task was started with --checkpoint_dir; give it to all of them",
                    given_checkpoint_flags(options)));
  }
  worker::ClientVariables variables(**client);
  absl::Status trained = train(options, signals, variables, *model.workload, summaries.get(), client->get(), [&] {
    model.devices->decided(**client);
    finish_timeline(timeline.get(), **client);
    return where_it_was(binder, model, (*client)->memory(), options);
  });
  // A run that failed leaves its last operations; a good one leaves no files.
  if (!trained.ok()) flight.write((*client)->traces().marks(), std::string(message_of(trained)));
  return trained;
}

absl::Status run_alone(const TrainOptions& given, const launch::HostPlan& plan, launch::SignalThread& signals) {
  const TrainOptions options = planned(given, plan);
  start_log("worker/0");
  signals.accept_stop();
  launch::AffinityBinder binder(plan, options);
  signals.follow_cpus();
  GRADRAIL_ASSIGN_OR_RETURN(const Model model, make_model(options, plan, binder));
  GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<LocalVariables> variables,
                            LocalVariables::create(model.workload->schema(), options.optimizer,
                                                   [&](const MemorySpan& memory) { binder.bind_memory(0, memory); }));
  GRADRAIL_ASSIGN_OR_RETURN(const auto summaries,
                            open_summaries(options.monitoring, options.task.index, options.log_every));
  if (options.tower_count == 1) binder.bind(0);
  return train(options, signals, *variables, *model.workload, summaries.get(), nullptr,
               [&] { return where_it_was(binder, model, variables->memory(), options); });
}

/// The options of one task, which the room `launch` has resolved further since the flags were checked.
TrainOptions of_task(TrainOptions options, const launch::TaskOptions& task) {
  static_cast<launch::TaskOptions&>(options) = task;
  return options;
}

}  // namespace

launch::TaskBodies task_bodies(const TrainOptions& options) {
  return {.run_ps =
              [options](const launch::TaskOptions& task, const launch::HostPlan& plan, launch::SignalThread& signals,
                        const std::function<void(uint16_t)>& listening, const std::function<void(uint32_t)>& joined) {
                return run_ps(of_task(options, task), plan, signals, listening, joined);
              },
          .run_worker =
              [options](const launch::TaskOptions& task, const launch::HostPlan& plan, launch::SignalThread& signals,
                        const std::function<void()>& joined) {
                const TrainOptions own = of_task(options, task);
                return trains_alone(own) ? run_alone(own, plan, signals) : run_worker(own, plan, signals, joined);
              },
          .bar_of_line = bar_of_line};
}

}  // namespace gradrail::tools
