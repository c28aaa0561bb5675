#include "ps/server.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <climits>

#include "absl/synchronization/mutex.h"
#include "base/check.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gradrail/cluster.h"
#include "ps/admission/gated_server.h"
#include "ps/checkpoint/folder.h"
#include "ps/checkpoint/folder_lock.h"
#include "ps/control/control_plane.h"
#include "ps/control/control_service.h"
#include "ps/control/parent.h"
#include "ps/protocol/altered_data.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/control_call.h"
#include "ps/protocol/control_channel.h"
#include "ps/protocol/mac.h"

namespace gradrail::ps {
namespace {

constexpr auto kReportEvery = std::chrono::seconds(10);
constexpr auto kHousekeepEvery = std::chrono::milliseconds(200);

absl::Status with_remedy(const absl::Status& cannot_listen) {
  if (absl::IsResourceExhausted(cannot_listen)) return cannot_listen;
  const char* remedy = "";
  if (absl::IsAlreadyExists(cannot_listen)) remedy = " (choose another one in the cluster, or with --bind)";
  if (absl::IsNotFound(cannot_listen)) remedy = " (is --task_index right? if so, name a local address with --bind)";
  return absl::FailedPreconditionError(fmt::format("{}{}", message_of(cannot_listen), remedy));
}

void set_limits(grpc::ServerBuilder& builder) {
  constexpr int kHandshakeMs = 3000;  // time limit of TLS
  // The pings of workers, which gRPC would otherwise take for an attack in a long pause between two heartbeats.
  constexpr int kLeastPauseMs = 500;
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  // The kernel looks for vanished hosts (gate.h). gRPC would set a timer at each message, a fifth of its cost.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, INT_MAX);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kLeastPauseMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
}

/// A connection of the control plane for each worker, and one to each shard.
absl::Status allow_connections(const ServerOptions& options) {
  constexpr uint64_t kOwnFiles = 256;  // files of libraries, checkpoints, other tasks
  const absl::Status allowed =
      allow_open_files(kOwnFiles + options.worker_names.size() * (1 + uint64_t{options.shard_count}));
  if (allowed.ok()) return allowed;
  return absl::FailedPreconditionError(fmt::format("{} workers at {} shards: {}", options.worker_names.size(),
                                                   options.shard_count, message_of(allowed)));
}

/// The first port of a shard of this task (data_ports_of_shard()), which may be beyond the largest port.
uint32_t data_port_of(const ServerOptions& options, uint32_t shard) {
  if (options.data_port == 0) return 0;
  return options.data_port +
         (options.task_index * options.shard_count + shard) * data_ports_of_shard(options.transports);
}

absl::Status check_data_ports(const ServerOptions& options) {
  const uint32_t end = data_port_of(options, options.shard_count);
  if (end <= uint32_t{UINT16_MAX} + 1) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("--data-port {}: the shards of task {} would need ports up to {}",
                                                   options.data_port, options.task_index, end - 1));
}

/// A line of the log stays readable with thousands of workers.
std::string list_of(const std::vector<std::string>& workers) {
  constexpr size_t kMost = 20;
  const size_t shown = std::min(workers.size(), kMost);
  std::string list =
      fmt::format("{}", fmt::join(workers.begin(), workers.begin() + static_cast<ptrdiff_t>(shown), ", "));
  if (shown < workers.size()) list += fmt::format(" and {} others", workers.size() - shown);
  return list;
}

void warn_of_members(const std::vector<std::string>& workers, Duration grace_period) {
  const double seconds = std::chrono::duration<double>(grace_period).count();
  log_warning("stopped on request{}: this task ends before {} {} left",
              seconds > 0 ? fmt::format(", after the limit of {} s for workers to leave", seconds) : "",
              list_of(workers), workers.size() == 1 ? "has" : "have");
}

/// The gRPC service of a control plane, behind a gate.
class GrpcListener final : public ControlListener {
 public:
  static absl::StatusOr<std::unique_ptr<ControlListener>> start(ControlPlane& plane, const ServerOptions& options) {
    GRADRAIL_ASSIGN_OR_RETURN(const auto credentials, server_credentials(options.security));
    // Debian builds Abseil with its search for deadlocks, which takes a tenth of the time of gRPC.
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    GRADRAIL_RETURN_IF_ERROR(check_available_tasks("the control plane of a ps needs", threads_with_grpc()));
    auto listener = std::make_unique<GrpcListener>();
    listener->service_ = make_control_service(plane);
    grpc::ServerBuilder builder;
    set_limits(builder);
    builder.RegisterService(listener->service_.get());
    absl::StatusOr<std::unique_ptr<GatedServer>> started =
        GatedServer::start(builder, options.listen_address, credentials,
                           {.secret = options.security.secret, .vanish_timeout = options.heartbeat_timeout});
    if (!started.ok()) return with_remedy(started.status());
    listener->gated_server_ = *std::move(started);
    return listener;
  }
  uint16_t port() const override { return gated_server_->port(); }
  void shutdown(Duration grace) override { gated_server_->shutdown(grace); }

 private:
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<GatedServer> gated_server_;  ///< declared after the service, which it calls
};

}  // namespace

class Server::Impl {
 public:
  static absl::StatusOr<std::unique_ptr<Impl>> start(const Options& options);
  ~Impl();

  uint64_t dumps_asked() const {
    return control->stats.dumps_asked() + (dump_signals == nullptr ? 0 : dump_signals->load(std::memory_order_relaxed));
  }

  absl::Status parent_failure() const {
    const Parent* const parent = control->context.options.parent.get();
    return parent == nullptr ? absl::OkStatus() : parent->failure();
  }

  FolderLock folder_lock;  // first: released after the last write
  std::vector<std::unique_ptr<Shard>> shards;
  std::unique_ptr<ControlPlane> control;
  std::unique_ptr<ControlListener> listener;
  std::function<void(const std::vector<Mark>&)> dump;
  const std::atomic<uint32_t>* dump_signals = nullptr;

 private:
  absl::StatusOr<std::string> open_folder(const Options& options);
  absl::Status start_shards(const Options& options);
  Shard::Options shard_options(const Options& options, uint32_t index, StoreMaker make_store);
};

Server::Impl::~Impl() {
  // Callers of the shards end before the shards: first the handlers of calls, then the thread of the link.
  // Barriers and heartbeats wait in their handlers: this deadline cancels them.
  if (listener != nullptr) listener->shutdown(std::chrono::milliseconds(500));
  if (control != nullptr) control->replication.stop();
  shards.clear();  // destroyed before the control plane, to which they report losses
}

absl::StatusOr<std::unique_ptr<Server::Impl>> Server::Impl::start(const Options& options) {
  GRADRAIL_RETURN_IF_ERROR(allow_connections(options));
  GRADRAIL_RETURN_IF_ERROR(check_exposure(options.security, options.listen_address));
  for (const std::string& rail : options.rails)
    GRADRAIL_RETURN_IF_ERROR(check_exposure_of_host(options.security, rail, fmt::format("the rail {}", rail)));
  GRADRAIL_RETURN_IF_ERROR(check_encryption(options.security));
  auto impl = std::make_unique<Impl>();
  absl::StatusOr<std::string> checkpoint_folder = std::string();
  // A folder without write permission must be found before hours of training, not after them.
  if (!options.checkpoint_dir.empty()) checkpoint_folder = impl->open_folder(options);
  if (!checkpoint_folder.ok()) return checkpoint_folder.status();
  impl->dump = options.dump;
  impl->dump_signals = options.dump_signals;
  impl->control = std::make_unique<ControlPlane>(options, *std::move(checkpoint_folder), impl->shards);
  GRADRAIL_RETURN_IF_ERROR(impl->control->barrier.start());
  GRADRAIL_RETURN_IF_ERROR(impl->start_shards(options));
  // A call may arrive as soon as listen() runs: shards and link exist before it.
  GRADRAIL_RETURN_IF_ERROR(impl->control->replication.start());
  GRADRAIL_ASSIGN_OR_RETURN(impl->listener, options.listen ? options.listen(*impl->control, options)
                                                           : GrpcListener::start(*impl->control, options));
  impl->control->replication.set_port(impl->listener->port());
  return impl;
}

/// Returns the identity of the checkpoint folder.
absl::StatusOr<std::string> Server::Impl::open_folder(const Options& options) {
  GRADRAIL_ASSIGN_OR_RETURN(std::string identity, prepare_checkpoint_folder(options.checkpoint_dir));
  if (options.run_name.empty()) return identity;
  GRADRAIL_ASSIGN_OR_RETURN(folder_lock,
                            FolderLock::take(options.checkpoint_dir, options.run_name, options.task_index));
  return identity;
}

absl::Status Server::Impl::start_shards(const Options& options) {
  GRADRAIL_RETURN_IF_ERROR(check_data_ports(options));
  GRADRAIL_ASSIGN_OR_RETURN(const StoreMaker make_store, store_maker(options.device));
  if (options.ablation.no_optimizer && options.device != "host")
    return absl::FailedPreconditionError("without the optimizer: parameters in host memory only");
  for (uint32_t i = 0; i < options.shard_count; ++i) {
    GRADRAIL_ASSIGN_OR_RETURN(
        std::unique_ptr<Shard> shard,
        Shard::start(shard_options(options, i, options.parent ? options.parent->store_maker(i) : make_store)));
    shards.push_back(std::move(shard));
  }
  GRADRAIL_CHECK(shards.size() == options.shard_count);
  return absl::OkStatus();
}

Shard::Options Server::Impl::shard_options(const Options& options, uint32_t index, StoreMaker make_store) {
  // The data plane listens where the control plane does, so that --bind limits both.
  const absl::StatusOr<HostPort> bind = parse_host_port(options.listen_address);
  const std::string bind_host = bind.ok() ? bind->host : options.advertised_host;
  ControlPlane* const plane = control.get();  // outlives the shards
  return {.name = fmt::format("shard {}", index),
          .transports = options.transports,
          .bind_host = bind_host,
          .rails = options.rails,
          .data_port = static_cast<uint16_t>(data_port_of(options, index)),
          .open = {.bind_host = bind_host,
                   .rdma_only = options.rdma_only,
                   .ofi_provider = options.ofi_provider,
                   .path_timeout = options.path_timeout,
                   .encryption = data_encryption(options.security)},
          .wait = options.wait,
          .on_thread_start =
              [start = options.on_shard_thread, index] {
                if (start) start(index);
              },
          .place_memory =
              [place = options.place_memory, index](const MemorySpan& memory) {
                if (place) place(index, memory);
              },
          .on_lost =
              [plane](WorkerIndex worker, uint64_t incarnation, const std::string& cause) {
                plane->context.losses.report({{worker, incarnation}, cause});
              },
          .on_failed = [plane](const std::string& cause) { plane->context.losses.report_failure(cause); },
          .on_non_finite = [plane](const NonFinite& first) { plane->context.losses.report_non_finite(first); },
          .on_finite_again = [plane] { plane->context.losses.report_finite(); },
          .on_backup = [plane](const std::string& cause) { plane->replication.report_shard(cause); },
          .make_store = with_ablation(std::move(make_store), options.ablation),
          .slot_bytes = options.slot_bytes,
          .marks = options.marks};
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::start(const Options& options) {
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl, Impl::start(options));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

uint16_t Server::port() const { return impl_->listener->port(); }

absl::Status Server::wait_finished(const std::atomic<bool>& stop, Duration grace_period) {
  HeartbeatHandler& heartbeat = impl_->control->heartbeat;
  TimePoint report_at = Clock::now() + kReportEvery;
  TimePoint ends_at = TimePoint::max();
  uint64_t dumped = 0;
  absl::Status lost_parent;
  while (!heartbeat.finished()) {
    lost_parent = impl_->parent_failure();
    if (absl::IsUnavailable(lost_parent)) {  // the workers wait for this task to start again
      for (const auto& shard : impl_->shards) shard->stop_serving();
      break;
    }
    if (!lost_parent.ok()) impl_->control->context.losses.report_failure(std::string(message_of(lost_parent)));
    if (stop.load()) {
      // min(): the grace period counts from the first round that has detected the stop.
      ends_at = std::min(ends_at, Clock::now() + grace_period);
      const std::vector<std::string> workers = heartbeat.workers();
      if (Clock::now() >= ends_at || workers.empty()) {
        if (!workers.empty()) warn_of_members(workers, grace_period);
        for (const auto& shard : impl_->shards) shard->stop_serving();  // a step applied now would be lost
        break;
      }
    }
    heartbeat.housekeep(kHousekeepEvery);
    if (const uint64_t asked = impl_->dumps_asked(); asked != dumped) {
      dumped = asked;
      if (impl_->dump) impl_->dump(marks());
    }
    if (Clock::now() < report_at) continue;
    report_at += kReportEvery;
    const std::vector<std::string> missing = heartbeat.awaited();
    if (!missing.empty()) log_warning("waiting for {}", list_of(missing));
  }
  heartbeat.declare_non_finite();  // non-finite values of the last steps
  // A stopped task is not a finished run: its backup must find it lost and take over.
  if (heartbeat.finished()) impl_->control->replication.end();
  const std::string aborted = impl_->control->context.state.aborted();
  if (Parent* const parent = impl_->control->context.options.parent.get(); parent != nullptr)
    parent->leave(!aborted.empty()       ? aborted
                  : heartbeat.finished() ? ""
                                         : "its parameter server ends before its workers");
  if (absl::IsUnavailable(lost_parent)) return lost_parent;
  // A restart with the same options would fail in the same way.
  if (impl_->control->replication.is_misconfigured()) return absl::FailedPreconditionError(aborted);
  return aborted.empty() ? absl::OkStatus() : aborted_run(aborted);
}

void Server::wake() { impl_->control->context.losses.wake(); }

std::vector<std::string> Server::summary() {
  proto::StatsReply stats;
  if (const absl::Status gathered = impl_->control->stats.gather(stats); !gathered.ok()) {
    return {std::string(gathered.message())};
  }
  std::vector<std::string> lines = {fmt::format("global step {}, {} bucket updates, {} shards", stats.global_step(),
                                                stats.updates(), impl_->shards.size())};
  for (const proto::StatsReply::Path& path : stats.paths()) {
    lines.push_back(fmt::format("path {}: {} bytes in, {} bytes out", path.path(), path.bytes_in(), path.bytes_out()));
  }
  return lines;
}

absl::StatusOr<proto::StatsReply> Server::stats() {
  proto::StatsReply stats;
  GRADRAIL_RETURN_IF_ERROR(impl_->control->stats.gather(stats));
  return stats;
}

std::vector<Mark> Server::marks() {
  std::vector<Mark> all;
  for (const auto& shard : impl_->shards) {
    const std::vector<Mark> some = shard->marks().value_or(std::vector<Mark>{});
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<MemorySpan> Server::parameters_memory() {
  std::vector<MemorySpan> spans;
  for (const auto& shard : impl_->shards) spans.push_back(shard->parameters_memory().value_or(MemorySpan{}));
  return spans;
}

}  // namespace gradrail::ps
