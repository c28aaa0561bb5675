#include "ps/shard/shard.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/net_address.h"
#include "base/out_of_memory.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gradrail/cluster.h"
#include "ps/protocol/altered_data.h"
#include "transport/negotiate.h"
#include "transport/rails/bundle_context.h"

namespace gradrail::ps {
namespace {

/// A shard is busy for one update at most, so that only a stopped process or a failed thread exceeds this.
constexpr auto kTaskDeadline = std::chrono::seconds(30);
/// Waits while a peer has work that no completion announces: room in a transport, a mapping.
constexpr auto kShortWait = std::chrono::milliseconds(1);
/// Longest wait of the loop without such work. Only completions and tasks matter then, and these wake the loop.
/// Deadlines of absent members are coarse.
constexpr auto kLongWait = std::chrono::seconds(1);
/// Completions of one turn. Tasks and other peers wait meanwhile.
constexpr size_t kCompletionsPerTurn = 64;

/// Ports of a transport: one for connections of one lane, and one for those of several streams or rails.
constexpr uint16_t kPortsOfTransport = 2;

bool crosses_network(const std::string& name) {
  const absl::StatusOr<const transport::Transport*> found = transport::find_transport(name);
  return found.ok() && !(*found)->same_host_only;
}

/// A port of --data-port that is in use must not leave the shard without this transport: the site has opened no other.
absl::Status check_data_port(const std::string& host, uint16_t port) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<NetAddress> addresses, resolve(host, port));
  FileDescriptor listener;
  const int error = listen_at(addresses.front(), false, listener);
  if (error == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format("cannot listen on the data port {}: {} (--data-port)",
                                                   addresses.front().text(), std::strerror(error)));
}

/// Opens a transport, and listens on its rails if its connections may have several lanes.
absl::StatusOr<std::unique_ptr<transport::Context>> open_context(const transport::Transport& transport,
                                                                 const ShardOptions& options, uint16_t port,
                                                                 ShardEndpoint& endpoint) {
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<transport::Context> context, transport.open(options.open));
  if (!transport.has_lanes) return context;
  auto bundle = std::make_unique<transport::rails::BundleContext>(std::move(context));
  if (port != 0) ++port;  // the first one is that of connections of one lane
  const std::vector<std::string> only = {options.bind_host};
  std::vector<std::string> rails;
  for (const std::string& host : options.rails.empty() ? only : options.rails)
    rails.push_back(to_string({.host = host, .port = port}));
  GRADRAIL_ASSIGN_OR_RETURN(endpoint.rails,
                            bundle->listen(fmt::format("{}{}", transport::rails::kLanesPrefix, fmt::join(rails, ","))));
  return bundle;
}

absl::StatusOr<ShardEndpoint> listen_on(const transport::Transport& transport, uint16_t port,
                                        ShardEnvironment& environment, transport::WaitSet& wait_set) {
  const ShardOptions& options = environment.options;
  ShardEndpoint endpoint{.transport = transport.name};
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<transport::Context> context,
                            open_context(transport, options, port, endpoint));
  // Transports within one host choose their own names.
  if (endpoint.address.empty()) {
    GRADRAIL_ASSIGN_OR_RETURN(
        endpoint.address,
        context->listen(transport.same_host_only ? "" : to_string({.host = options.bind_host, .port = port})));
  }
  wait_set.add(context.get());
  environment.contexts.push_back(std::move(context));
  return endpoint;
}

}  // namespace

uint32_t data_ports_of_shard(const std::vector<std::string>& transports) {
  return kPortsOfTransport *
         static_cast<uint32_t>(std::count_if(transports.begin(), transports.end(), crosses_network));
}

absl::StatusOr<std::vector<ShardEndpoint>> listen(ShardEnvironment& environment, transport::WaitSet& wait_set) {
  const ShardOptions& options = environment.options;
  std::vector<ShardEndpoint> endpoints;
  std::vector<transport::Candidate> refused;
  uint16_t next_port = options.data_port;
  for (const std::string& name : options.transports) {
    const uint16_t port = crosses_network(name) ? next_port : 0;
    for (uint16_t i = 0; port != 0 && i < kPortsOfTransport; ++i)
      GRADRAIL_RETURN_IF_ERROR(check_data_port(options.bind_host, next_port++));
    GRADRAIL_ASSIGN_OR_RETURN(const transport::Transport* const found, transport::find_transport(name));
    absl::StatusOr<ShardEndpoint> endpoint = listen_on(*found, port, environment, wait_set);
    if (!endpoint.ok()) {
      refused.push_back({.name = name, .refused = std::string(message_of(endpoint.status()))});
      endpoint = ShardEndpoint{name, "", std::string(message_of(endpoint.status()))};
    }
    endpoints.push_back(*std::move(endpoint));
  }
  if (!environment.contexts.empty()) return endpoints;
  // FAILED_PRECONDITION: the cause is the host or the flags, so that another start fails in the same way.
  return absl::FailedPreconditionError(
      fmt::format("{}: no transport can be used: {}", options.name, transport::explain_none(refused)));
}

Shard::Shard(Options options)
    : environment_{.options = std::move(options)},
      wait_set_(environment_.options.wait),
      parameters_(environment_),
      peers_(environment_, {.on_active = [this](ShardPeer& peer) { exchange_.make_lanes(peer); },
                            .on_inactive =
                                [this](const ShardPeer& peer) {
                                  // Held answers and waiting pushes refer to the memory of this connection, which
                                  // ends now.
                                  primary_.forget_held(peer.worker);
                                  exchange_.forget(peer.worker);
                                  partition_.protocol().reconnect_worker(peer.worker, peer.incarnation);
                                }}),
      primary_(environment_, partition_, [this](const Action& action) { exchange_.answer(action); }),
      backup_(environment_, partition_, peers_),
      exchange_(environment_, partition_, parameters_, peers_, primary_),
      handshake_(environment_, partition_, parameters_, peers_, backup_) {}

absl::StatusOr<std::unique_ptr<Shard>> Shard::start(Options options) {
  std::unique_ptr<Shard> shard(new Shard(std::move(options)));
  GRADRAIL_RETURN_IF_ERROR(shard->wait_set_.check());
  GRADRAIL_ASSIGN_OR_RETURN(shard->endpoints_, listen(shard->environment_, shard->wait_set_));
  GRADRAIL_ASSIGN_OR_RETURN(shard->thread_, start_thread("of a shard", [raw = shard.get()] { raw->run(); }));
  return shard;
}

Shard::~Shard() {
  tasks_.stop();
  // The loop would otherwise notice the stop only after kLongWait.
  wait_set_.wake();
  if (thread_.joinable()) thread_.join();
}

void Shard::run() {
  pthread_setname_np(pthread_self(), "gradrail-shard");
  if (environment_.options.on_thread_start) environment_.options.on_thread_start();
  const absl::Status served = without_exceptions(environment_.options.name, [this] {
    serve();
    return absl::OkStatus();
  });
  // The interrupted work is unknown: the run ends with the cause of the exception.
  if (!served.ok()) fail(std::string(message_of(served)));
}

void Shard::serve() {
  std::vector<transport::Completion> completions(kCompletionsPerTurn);
  bool is_stopped = false;
  while (!is_stopped) {
    const size_t count = wait(absl::MakeSpan(completions));
    if (count > 0) exchange_.on_completions();
    for (size_t i = 0; i < count; ++i) dispatch(completions[i]);
    if (tasks_.has_work()) is_stopped = !tasks_.run();
    exchange_.end_windows();
    // The call follows all completions of the turn: one transfer of a bucket carries the updates of all of them.
    primary_.advance();
    exchange_.advance();
    if (peers_.needs_visit()) continue_peers();
  }
}

size_t Shard::wait(absl::Span<transport::Completion> completions) {
  // A GPU gives no notice of its progress: the loop polls it.
  if (exchange_.waits_for_gpu()) {
    partition_.device()->pause();
    return wait_set_.poll(completions);
  }
  // These polls find work under load, and no deadline needs the clock.
  if (const size_t count = wait_set_.poll_briefly(completions); count > 0) return count;
  return wait_set_.wait(completions, next_deadline());
}

TimePoint Shard::next_deadline() const {
  const bool is_urgent = peers_.has_unsettled() || primary_.waits_for_room();
  return std::min(Clock::now() + (is_urgent ? Duration(kShortWait) : Duration(kLongWait)), exchange_.next_window_end());
}

void Shard::dispatch(transport::Completion& completion) {
  using Kind = transport::Completion::Kind;
  using Phase = ShardPeer::Phase;
  if (completion.kind == Kind::connected) {
    return handshake_.send_challenge(peers_.accept(*completion.connection, wait_set_.source_index()));
  }
  if (completion.kind == Kind::peer_lost && completion.altered) report_altered(completion);
  // This check precedes peer_of(): the connection to the backup is not a peer.
  if (primary_.owns(completion.connection)) return primary_.on_completion(completion);
  ShardPeer& peer = PeerTable::peer_of(*completion.connection);
  switch (completion.kind) {
    case Kind::put_arrived:
      if (peer.phase == Phase::active) {
        const uint64_t before = peer.bytes_in;
        exchange_.on_arrival(peer, completion.immediate);
        completion.connection->count_received(completion.lane, peer.bytes_in - before);
      } else if (peer.phase == Phase::checking) {
        handshake_.on_pattern(peer, completion.immediate);
      } else if (peer.phase == Phase::primary) {
        backup_.on_bucket(peer, completion.immediate);
      }  // other phases: the peer is closing, and its late puts change nothing
      break;
    case Kind::message:
      handshake_.on_message(peer, completion.message);
      break;
    case Kind::peer_lost:
      peers_.on_lost(peer, std::string(message_of(completion.cause)));
      break;
    default:
      break;  // the shard requests no put_done, and posts a get only to probe a mapping
  }
}

/// A new connection would be no remedy: the attacker can alter it as well. The run ends with the first altered record.
void Shard::report_altered(const transport::Completion& lost) {
  const bool is_backup = primary_.owns(lost.connection);
  // A process without the proof of a member must not be able to end the run.
  if (!is_backup) {
    const ShardPeer::Phase phase = PeerTable::peer_of(*lost.connection).phase;
    if (phase == ShardPeer::Phase::handshake || phase == ShardPeer::Phase::closing) return;
  }
  const std::string peer =
      is_backup ? "the backup" : fmt::format("worker {}", PeerTable::peer_of(*lost.connection).worker);
  const std::string cause =
      fmt::format("{}, between {} and {}: {}", kAlteredData, environment_.options.name, peer, message_of(lost.cause));
  fail(cause);
}

void Shard::fail(const std::string& cause) {
  log_error("{}", cause);
  if (environment_.options.on_failed) environment_.options.on_failed(cause);
}

/// Continues what waits for room in a transport, for a mapping, or for a deadline.
void Shard::continue_peers() {
  // These calls refuse peers, but never free one: the iteration stays valid (invariant 3 of PeerTable).
  peers_.for_each([this](ShardPeer& peer) {
    handshake_.advance(peer);
    if (peer.backlog.empty()) return;
    if (peer.phase == ShardPeer::Phase::active) exchange_.post_backlog(peer);
    if (peer.phase == ShardPeer::Phase::primary) backup_.acknowledge(peer);
  });
  peers_.expire(Clock::now());
}

template <typename Task>
auto Shard::run_in_thread(Task task) -> absl::StatusOr<decltype(task())> {
  return tasks_.run_and_wait(
      environment_.options.name, kTaskDeadline, [this] { wait_set_.wake(); }, std::move(task));
}

absl::Status Shard::run_status_in_thread(std::function<absl::Status()> task) {
  const absl::StatusOr<absl::Status> done = run_in_thread(std::move(task));
  return done.ok() ? *done : done.status();
}

/// Runs tasks that a shard which is stopping, or does not answer, need not do.
void Shard::run_void_in_thread(std::function<void()> task) {
  const absl::StatusOr<bool> done = run_in_thread([task = std::move(task)] {
    task();
    return true;
  });
  // A part of the task may be done if memory was missing.
  if (absl::IsResourceExhausted(done.status())) fail(std::string(message_of(done.status())));
}

absl::Status Shard::set_up(Setup setup) {
  return run_status_in_thread([this, setup = std::move(setup)] { return begin(setup); });
}

/// Sets the shard up. A second call follows a failure of another shard's set-up, or a new begin of the run. The control
/// plane will then remove the former members.
absl::Status Shard::begin(const Setup& setup) {
  // Connections refer to regions, and regions to the store: they end in this order.
  peers_.withdraw_admissions();
  peers_.close_joined();
  peers_.forget_absent();
  primary_.reset();
  exchange_.reset();
  backup_.reset();
  parameters_.close();
  partition_.stop();
  GRADRAIL_RETURN_IF_ERROR(partition_.reset_to(setup, environment_.options.make_store,
                                               environment_.options.place_memory, environment_.options.slot_bytes));
  if (LaterResults* const later = partition_.later_results(); later != nullptr)
    later->set_wake([this] { wait_set_.wake(); });
  GRADRAIL_RETURN_IF_ERROR(parameters_.open(partition_));
  GRADRAIL_RETURN_IF_ERROR(partition_.start());
  exchange_.start();
  return absl::OkStatus();
}

absl::Status Shard::admit(WorkerIndex worker, uint64_t incarnation, const std::string& key) {
  return run_status_in_thread([this, worker, incarnation, key] {
    GRADRAIL_CHECK(partition_.is_set_up());
    peers_.admit(worker, incarnation, key);
    partition_.protocol().add_worker(worker, incarnation);
    return absl::OkStatus();
  });
}

void Shard::remove_member(WorkerIndex worker, uint64_t incarnation) {
  // The connections close first: a step that the removal completes then finds no push of this worker.
  run_void_in_thread([this, worker, incarnation] {
    peers_.remove_member(worker, incarnation);
    exchange_.change_membership(
        [&](ShardProtocol& protocol, Actions& actions) { protocol.remove_worker(worker, incarnation, actions); });
  });
}

absl::StatusOr<std::vector<uint64_t>> Shard::done_steps(WorkerIndex worker, uint64_t incarnation) {
  return run_in_thread([this, worker, incarnation] {
    std::vector<uint64_t> steps;
    if (!partition_.is_set_up()) return steps;
    steps.assign(partition_.map().fragment_count(), UINT64_MAX);
    for (uint32_t bucket = 0; bucket < partition_.bucket_count(); ++bucket) {
      const std::optional<uint64_t> done = partition_.protocol().done_step(worker, incarnation, bucket);
      if (!done.has_value()) return std::vector<uint64_t>();
      uint64_t& least = steps[partition_.fragment(bucket)];
      least = std::min(least, *done);
    }
    return steps;
  });
}

void Shard::mark_finished(WorkerIndex worker, uint64_t incarnation) {
  run_void_in_thread([this, worker, incarnation] {
    exchange_.change_membership([&](ShardProtocol& protocol, Actions& actions) {
      protocol.mark_worker_finished(worker, incarnation, actions);
    });
  });
}

void Shard::stop_expecting(const std::vector<WorkerIndex>& workers) {
  run_void_in_thread([this, workers] {
    for (const WorkerIndex worker : workers) {
      exchange_.change_membership(
          [&](ShardProtocol& protocol, Actions& actions) { protocol.stop_expecting_worker(worker, actions); });
    }
  });
}

void Shard::fence(WorkerIndex worker, uint64_t incarnation) {
  run_void_in_thread([this, worker, incarnation] { peers_.remove_member(worker, incarnation); });
}

void Shard::stop_serving() {
  run_void_in_thread([this] {
    peers_.begin_end();
    backup_.expect_no_primary();
    peers_.close_joined();
  });
}

absl::Status Shard::replicate_to(const std::vector<Endpoint>& endpoints, const std::string& key) {
  return run_status_in_thread([this, endpoints, key] { return primary_.attach_backup(endpoints, key); });
}

void Shard::detach_backup() {
  run_void_in_thread([this] { primary_.detach_backup(); });
}

absl::Status Shard::expect_primary(const std::string& key) {
  return run_status_in_thread([this, key] {
    backup_.expect_primary(key);
    return absl::OkStatus();
  });
}

absl::Status Shard::may_take_over(const ShardClaim& seen, bool is_primary_unreachable) {
  return run_status_in_thread(
      [this, seen, is_primary_unreachable] { return backup_.check_takeover(seen, is_primary_unreachable); });
}

absl::Status Shard::take_over(const std::vector<Successor>& members) {
  return run_status_in_thread([this, members] {
    backup_.take_over(members);
    exchange_.non_finite().reset();
    return absl::OkStatus();
  });
}

absl::StatusOr<Shard::Stats> Shard::stats() {
  return run_in_thread([this] { return collect_stats(); });
}

Shard::Stats Shard::collect_stats() const {
  Stats stats;
  stats.paths = peers_.traffic();
  for (const auto& context : environment_.contexts) transport::add_traffic(context->rail_traffic(), stats.rails);
  stats.backup = primary_.describe_backup();
  if (!partition_.is_set_up()) return stats;
  const ShardProtocol& protocol = partition_.protocol();
  stats.updates = exchange_.updates() + backup_.updates();
  stats.dropped = exchange_.dropped();
  stats.non_finite_buckets = exchange_.non_finite().odd_buckets();
  stats.non_finite_gradients = exchange_.non_finite().gradients();
  stats.learned_window = exchange_.learned_window();
  stats.initialised = protocol.initialised();
  stats.next_steps.assign(partition_.map().fragment_count(), UINT64_MAX);
  for (uint32_t bucket = 0; bucket < partition_.bucket_count(); ++bucket) {
    uint64_t& lowest = stats.next_steps[partition_.fragment(bucket)];
    lowest = std::min(lowest, protocol.next_step(bucket));
  }
  if (partition_.bucket_count() > 0) {
    // Bucket 0 represents all: buckets differ by the updates in flight only.
    stats.version = protocol.version(0);
    stats.waiting_for = protocol.waiting_for(0);
  }
  return stats;
}

absl::StatusOr<MemorySpan> Shard::parameters_memory() {
  return run_in_thread([this] { return partition_.has_store() ? partition_.store().parameters() : MemorySpan{}; });
}

absl::StatusOr<std::vector<Mark>> Shard::marks() {
  return run_in_thread([this] { return exchange_.marks(); });
}

absl::StatusOr<Checkpoint> Shard::snapshot(Checkpoint memory) {
  auto copy = std::make_shared<Checkpoint>(std::move(memory));  // shared, as the promise in run_and_wait()
  GRADRAIL_RETURN_IF_ERROR(run_status_in_thread([this, copy] { return partition_.copy_to(*copy); }));
  return std::move(*copy);
}

}  // namespace gradrail::ps
