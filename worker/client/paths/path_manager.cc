#include "worker/client/paths/path_manager.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/altered_data.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/mac.h"
#include "transport/rails/bundle_context.h"
#include "transport/registry.h"
#include "worker/client/paths/gpu_transfers.h"

namespace gradrail::worker {
PathManager::PathManager(const ClientOptions& options, const Identity& identity, ModelMemory& memory,
                         RunFailure& failure, Telemetry& telemetry, PathEvents& events, ControlCalls calls)
    : options_(options),
      identity_(identity),
      memory_(memory),
      failure_(failure),
      telemetry_(telemetry),
      events_(events),
      why_removed_(std::move(calls.why_removed)),
      answers_(std::move(calls.answers)),
      wait_set_(options.transport.wait) {}

void set_endpoints(ShardLink& link, const ps::proto::JoinReply::Shard& shard) {
  link.endpoints.clear();
  // The shard does not have the interface of this host that reaches it: that of its control plane is used.
  for (const auto& endpoint : shard.endpoints()) {
    link.endpoints.push_back({endpoint.transport(), with_scope_of(link.address, endpoint.address()),
                              with_scope_of(link.address, endpoint.rails())});
  }
}

std::string explain_path(const ShardLink& link) {
  return transport::explain(link.candidates, link.candidates[link.candidate].name, link.path->shown_path());
}

void PathManager::set_server(ShardLink& link, const ps::proto::DescribeReply& described) {
  const std::string host_id = transport::host_id();
  link.ipc_refused = why_not_ipc(memory_.gpu(), described, host_id == described.host_id(), link.server);
  std::vector<transport::PeerTransport> offers;
  for (const auto& transport : described.transports()) offers.push_back({transport.name(), transport.refused()});
  link.candidates = transport::rank_candidates(options_.transport.order, offers, host_id, described.host_id(),
                                               options_.security.encrypt_data);
  shard_on_gpu_ = shard_on_gpu_ || described.on_gpu();
}

absl::Status PathManager::connect_all(TimePoint deadline) {
  GRADRAIL_RETURN_IF_ERROR(wait_set_.check());
  for (const auto& link : links_) {
    if (link->bucket_count == 0) continue;  // more shards than elements: nothing to exchange with this one
    if (link->path != nullptr) continue;    // path of an attempt that ended at another shard
    GRADRAIL_RETURN_IF_ERROR(connect(*link, deadline));
  }
  warn_of_slower_paths();
  return absl::OkStatus();
}

/// Logs each reason that is a fault once. Another host or a missing device is no fault.
void PathManager::warn_of_slower_paths() const {
  std::set<std::string> reasons;
  for (const auto& link : links_) {
    if (link->path == nullptr) continue;
    for (size_t i = 0; i < link->candidate; ++i) {
      const transport::Candidate& better = link->candidates[i];
      if (better.never || better.refused.empty() || !reasons.insert(better.refused).second) continue;
      log_warning("shard {} at {}: {} is used, because {} was refused: {}", link->shard_index, link->address,
                  link->candidates[link->candidate].name, better.name, better.refused);
    }
  }
}

void PathManager::clear() {
  links_.clear();
  close_unused_contexts();
  GRADRAIL_CHECK(contexts_.empty());
  shard_on_gpu_ = path_lost_ = false;
}

absl::StatusOr<std::unique_ptr<transport::Context>> PathManager::open_transport(const Target& target) const {
  using Lanes = OpenContext::Lanes;
  GRADRAIL_ASSIGN_OR_RETURN(const transport::Transport* const found, transport::find_transport(target.transport));
  const transport::OpenOptions options = {.bind_host = target.lanes == Lanes::rails ? "" : options_.transport.bind_host,
                                          .rdma_only = options_.transport.rdma_only || options_.transport.require_rdma,
                                          .ofi_provider = options_.transport.ofi_provider,
                                          .path_timeout = options_.transport.path_timeout,
                                          .encryption = ps::data_encryption(options_.security)};
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<transport::Context> context, found->open(options));
  if (target.lanes == Lanes::one) return context;
  return std::make_unique<transport::rails::BundleContext>(std::move(context), options_.transport.streams);
}

absl::StatusOr<OpenContext*> PathManager::open_context(const Target& target) {
  // One context serves the paths to all shards: memory is registered, and pinned, once per transport.
  for (const auto& context : contexts_) {
    if (context->transport == target.transport && context->lanes == target.lanes) return context.get();
  }
  auto open = std::make_unique<OpenContext>(OpenContext{.transport = target.transport, .lanes = target.lanes});
  GRADRAIL_ASSIGN_OR_RETURN(open->context, open_transport(target));
  GRADRAIL_RETURN_IF_ERROR(
      register_model(*open, registered_, memory_.parameter_span(), memory_.gradient_span(), shard_on_gpu_));
  contexts_.push_back(std::move(open));
  // The context is polled from here on only: it needs registered memory first.
  wait_set_.add(contexts_.back()->context.get());
  return contexts_.back().get();
}

void PathManager::close_unused_contexts() {
  // Invariant 3. A context with a probe only is in use as well: the probe may become the path.
  std::erase_if(contexts_, [&](const std::unique_ptr<OpenContext>& open) {
    const auto uses = [&](const std::unique_ptr<ShardPath>& path) {
      return path != nullptr && &path->context() == open.get();
    };
    for (const auto& link : links_) {
      if (uses(link->path) || uses(link->probe.path)) return false;
    }
    wait_set_.remove(open->context.get());
    transport::add_traffic(open->context->rail_traffic(), closed_rails_);
    return true;
  });
}

/// Registers the GPU memory with a network device, once per context and way.
absl::Status PathManager::reach_gpu(OpenContext& open, GpuTransfer way) {
  if (way != GpuTransfer::dma_buf && way != GpuTransfer::peer_memory) return absl::OkStatus();
  GRADRAIL_CHECK(memory_.gpu() != nullptr);
  const NicGpuTransfer direct = way == GpuTransfer::dma_buf ? NicGpuTransfer::dma_buf : NicGpuTransfer::peer_memory;
  std::unique_ptr<transport::MemoryRegion>& region = open.gpu[static_cast<size_t>(direct)];
  if (region != nullptr) return absl::OkStatus();
  const std::string why_not = open.context->capabilities().gpu.why_not(direct);
  if (!why_not.empty()) return absl::FailedPreconditionError(fmt::format("{} {}", open.transport, why_not));
  GRADRAIL_ASSIGN_OR_RETURN(const MemorySpan block, memory_.gpu()->block(direct));
  GRADRAIL_ASSIGN_OR_RETURN(region,
                            transport::register_on(registered_, *open.context, block, transport::Access::remote_write));
  return absl::OkStatus();
}

size_t PathManager::poll_events() { return deliver_all(wait_set_.poll(absl::MakeSpan(arrived_))); }

size_t PathManager::poll_briefly() { return deliver_all(wait_set_.poll_briefly(absl::MakeSpan(arrived_))); }

size_t PathManager::wait_events(TimePoint deadline) {
  return deliver_all(wait_set_.wait(absl::MakeSpan(arrived_), deadline));
}

size_t PathManager::deliver_all(size_t count) {
  for (size_t i = 0; i < count; ++i) deliver(arrived_[i]);
  return count;
}

void PathManager::deliver(const transport::Completion& completion) {
  using Kind = transport::Completion::Kind;
  GRADRAIL_CHECK(completion.connection->user_data() != 0);  // ShardPath::open() has set it
  auto& path = *reinterpret_cast<ShardPath*>(completion.connection->user_data());
  const bool is_active = path.phase() == ShardPath::Phase::active;
  switch (completion.kind) {
    case Kind::put_arrived:
      // A shard may answer directly behind Active, before use() has made this path the one of its link. That answer is
      // ignored: the exchange sends the bucket again in on_path_lost(), and the shard repeats the answer.
      if (!is_active) {
        path.on_check(completion.immediate);
      } else if (path.link().path.get() == &path) {
        const uint64_t before = path.link().bytes->returned;
        events_.on_answer(path.link(), completion.immediate);
        completion.connection->count_received(completion.lane, path.link().bytes->returned - before);
      }
      break;
    case Kind::message:
      path.on_message(completion.message);
      lower_left_ = path.take_lower_left() || lower_left_;
      // An active path carries pongs and a refusal, by which the shard ends the run of this worker.
      if (is_active && path.phase() == ShardPath::Phase::failed) {
        failure_.fail(absl::FailedPreconditionError(fmt::format(
            "shard {} at {} refused this worker: {}", path.link().shard_index, path.link().address, path.why())));
      }
      break;
    case Kind::peer_lost:
      // A new connection would be no remedy: the attacker can alter it as well.
      if (completion.altered) {
        failure_.fail(
            ps::aborted_run(fmt::format("{}, between this worker and shard {} at {}: {}", ps::kAlteredData,
                                        path.link().shard_index, path.link().address, message_of(completion.cause))));
      }
      path.on_lost(message_of(completion.cause));
      // A probe that is lost costs nothing: only the path in use has to be replaced.
      path_lost_ = path_lost_ || is_active;
      break;
    default:
      break;  // no operation requests put_done or get_done
  }
}

void PathManager::describe(ClientStats& stats) const {
  stats.registered = registered_;
  if (memory_.gpu() != nullptr) stats.flushes = memory_.gpu()->flushes();
  std::set<std::string> names;
  for (const auto& link : links_) {
    if (link->path == nullptr) continue;
    names.insert(link->path->name());
    stats.paths.push_back(fmt::format("shard {} at {}: {}{}", link->shard_index, link->address, explain_path(*link),
                                      link->path->mapped_text() + link->path->left_out_text()));
  }
  stats.paths_in_use = fmt::format("{}", fmt::join(names, ", "));
  stats.mode = options_.mode.kind;
  stats.push_format = options_.compression.push;
  stats.return_format = options_.compression.returns;
  transport::RailTraffic rails = closed_rails_;
  for (const auto& open : contexts_) transport::add_traffic(open->context->rail_traffic(), rails);
  for (const auto& [rail, bytes] : rails)
    stats.rail_bytes.push_back({rail.path, rail.address, bytes.sent, bytes.received});
  // Bytes are counted by path, and not by shard: after a move, the former path keeps what it has carried.
  for (const auto& [path, bytes] : path_bytes_) {
    stats.path_bytes.push_back({path, bytes.pushed, bytes.returned, bytes.pushed_fp32, bytes.returned_fp32});
    stats.bytes_pushed += bytes.pushed;
    stats.bytes_returned += bytes.returned;
    stats.bytes_pushed_fp32 += bytes.pushed_fp32;
    stats.bytes_returned_fp32 += bytes.returned_fp32;
  }
}

std::string PathManager::gpu_text() const { return describe_ways(options_, links_); }

}  // namespace gradrail::worker
