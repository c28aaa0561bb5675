#include "ps/server.h"

#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/checkpoint_folder.h"
#include "ps/cluster_spec.h"
#include "ps/control_call.h"
#include "ps/control_guard.h"
#include "ps/control_service.h"
#include "spdlog/spdlog.h"

namespace gradrail::ps {
namespace {

constexpr auto kReportEvery = std::chrono::seconds(10);
constexpr auto kHousekeepEvery = std::chrono::milliseconds(200);

/// gRPC keeps the reason to itself: the same is tried by hand.
std::string why_not_bound(const HostPort& address) {
  const addrinfo hints{.ai_flags = AI_PASSIVE, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (failure != 0) return fmt::format("{}: is the host name right?", gai_strerror(failure));
  const int probe = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int error = bind(probe, found->ai_addr, found->ai_addrlen) == 0 ? EADDRINUSE : errno;
  close(probe);
  freeaddrinfo(found);
  if (error == EADDRINUSE) return "the port is in use (choose another one in the cluster, or with --bind)";
  if (error != EADDRNOTAVAIL) return std::strerror(error);
  return "the address is not one of this host (is --task_index right? if so, name a local address with --bind)";
}

/// A connection that makes no call it may make costs little, and goes after 5 s. (A worker always has one under way.)
void limit_strangers(grpc::ServerBuilder& builder, Duration silence_limit) {
  constexpr int kHandshakeMs = 3000;
  constexpr int kIdleMs = 2000;  // counts from the end of the handshake
  // A host that is gone without a word would keep its connection, and the thread of its heartbeat, for two hours.
  constexpr int kKeepaliveMs = 5000;
  const auto silent_ms = static_cast<int>(std::min<int64_t>(silence_limit / std::chrono::milliseconds(1), INT_MAX));
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, std::max(kKeepaliveMs, silent_ms));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // as many as it takes
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // else it asks for more to be under way than is ever read
}

}  // namespace

class Server::Impl {
 public:
  static absl::StatusOr<std::unique_ptr<Impl>> start(const Options& options);
  ~Impl();

  std::vector<std::unique_ptr<Shard>> shards;
  std::unique_ptr<ControlService> service;
  std::unique_ptr<ControlGuard> guard;
  std::unique_ptr<grpc::Server> grpc_server;
  int port = 0;
  std::function<void(const std::vector<Mark>&)> dump;
  const std::atomic<uint32_t>* dump_signals = nullptr;

  uint64_t dumps_asked() const {
    return service->dumps_asked() + (dump_signals == nullptr ? 0 : dump_signals->load(std::memory_order_relaxed));
  }
};

Server::Impl::~Impl() {
  if (grpc_server != nullptr) grpc_server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  grpc_server.reset();
  if (service != nullptr) service->stop_mirroring();
  shards.clear();  // before the service their losses are reported to
}

absl::StatusOr<std::unique_ptr<Server::Impl>> Server::Impl::start(const Options& options) {
  auto impl = std::make_unique<Impl>();
  const std::string& listen_address = options.listen_address;
  impl->dump = options.dump;
  impl->dump_signals = options.dump_signals;
  GRADRAIL_RETURN_IF_ERROR(check_exposure(options.security, listen_address));
  const auto credentials = server_credentials(options.security);
  if (!credentials.ok()) return credentials.status();
  absl::StatusOr<std::string> checkpoint_folder = std::string();
  // Whether checkpoints can be written must be known before hours of training, not after.
  if (!options.checkpoint_dir.empty()) checkpoint_folder = prepare_checkpoint_folder(options.checkpoint_dir);
  if (!checkpoint_folder.ok()) return checkpoint_folder.status();
  const absl::StatusOr<StoreMaker> make_store = store_maker(options.device);
  if (!make_store.ok()) return make_store.status();
  if (options.ablation.no_optimizer && options.device != "host")
    return absl::FailedPreconditionError("without the optimizer: parameters in host memory only");
  const absl::StatusOr<HostPort> bind = parse_host_port(listen_address);
  impl->service = std::make_unique<ControlService>(options, *std::move(checkpoint_folder), impl->shards);
  for (uint32_t i = 0; i < options.shard_count; ++i) {
    absl::StatusOr<std::unique_ptr<Shard>> shard = Shard::start(
        {.name = fmt::format("shard {}", i),
         .transports = options.transports,
         .bind_host = bind.ok() ? bind->host : options.advertised_host,
         .open = {.bind_host = bind.ok() ? bind->host : options.advertised_host,
                  .rdma_only = options.rdma_only,
                  .ofi_provider = options.ofi_provider},
         .wait = options.wait,
         .on_thread_start =
             [bind = options.on_shard_thread, i] {
               if (bind) bind(i);
             },
         .place_memory =
             [place = options.place_memory, i](const MemorySpan& memory) {
               if (place) place(i, memory);
             },
         .on_lost = [service = impl->service.get()](
                        WorkerIndex worker, uint64_t incarnation,
                        const std::string& cause) { service->report_loss(worker, incarnation, cause); },
         .on_failed = [service = impl->service.get()](const std::string& cause) { service->report_failure(cause); },
         .on_replica = [service = impl->service.get()](const std::string& cause) { service->report_replica(cause); },
         .make_store = *make_store,
         .marks = options.marks,
         .ablation = options.ablation});
    if (!shard.ok()) return shard.status();
    impl->shards.push_back(*std::move(shard));
  }
  impl->guard = std::make_unique<ControlGuard>(*impl->service, options.security.secret);
  GRADRAIL_RETURN_IF_ERROR(impl->service->start_mirroring());
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // else a second server on the port is not an error
  limit_strangers(builder, options.silence_limit);
  builder.AddListeningPort(listen_address, *credentials, &impl->port);
  builder.RegisterService(impl->guard.get());
  impl->grpc_server = builder.BuildAndStart();
  if (impl->grpc_server == nullptr || impl->port == 0) {
    return absl::FailedPreconditionError(
        fmt::format("cannot listen on {}: {}", listen_address, bind.ok() ? why_not_bound(*bind) : "not an address"));
  }
  return impl;
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::start(const Options& options) {
  absl::StatusOr<std::unique_ptr<Impl>> impl = Impl::start(options);
  if (!impl.ok()) return impl.status();
  return std::unique_ptr<Server>(new Server(*std::move(impl)));
}

uint16_t Server::port() const { return static_cast<uint16_t>(impl_->port); }

absl::Status Server::wait_finished(const std::atomic<bool>& stop, Duration farewell) {
  TimePoint report_at = Clock::now() + kReportEvery;
  TimePoint ends_at = TimePoint::max();
  uint64_t dumped = 0;
  while (!impl_->service->finished()) {
    if (stop.load()) {
      ends_at = std::min(ends_at, Clock::now() + farewell);
      if (Clock::now() >= ends_at || !impl_->service->has_workers()) {
        for (const auto& shard : impl_->shards) shard->serve_no_more();  // else steps would be made that are lost
        break;
      }
    }
    impl_->service->housekeep(kHousekeepEvery);
    if (const uint64_t asked = impl_->dumps_asked(); asked != dumped) {
      dumped = asked;
      if (impl_->dump) impl_->dump(marks());
    }
    if (Clock::now() < report_at) continue;
    report_at += kReportEvery;
    const std::vector<std::string> missing = impl_->service->never_joined();
    if (!missing.empty()) spdlog::warn("waiting for {}", fmt::join(missing, ", "));
  }
  if (impl_->service->finished()) impl_->service->end_mirroring();
  const std::string aborted = impl_->service->aborted();
  if (impl_->service->misconfigured()) return absl::FailedPreconditionError(aborted);
  return aborted.empty() ? absl::OkStatus() : absl::AbortedError(aborted);
}

std::vector<std::string> Server::summary() {
  const absl::StatusOr<proto::StatsReply> stats = impl_->service->gather_stats();
  if (!stats.ok()) return {std::string(stats.status().message())};
  std::vector<std::string> lines = {fmt::format("global step {}, {} bucket updates, {} shards", stats->global_step(),
                                                stats->updates(), impl_->shards.size())};
  for (const proto::StatsReply::Path& path : stats->paths()) {
    lines.push_back(fmt::format("path {}: {} bytes in, {} bytes out", path.path(), path.bytes_in(), path.bytes_out()));
  }
  return lines;
}

absl::StatusOr<proto::StatsReply> Server::stats() { return impl_->service->gather_stats(); }

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
