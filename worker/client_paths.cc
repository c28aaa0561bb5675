// Which path leads to each shard: chosen when joining, replaced when it dies.
#include <algorithm>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/call_proof.h"
#include "spdlog/spdlog.h"
#include "transport/registry.h"
#include "worker/client_impl.h"

namespace gradrail::worker {
namespace {

using Phase = ShardPath::Phase;

/// One attempt over one transport: connecting, greeting and mapping take milliseconds where they work at all.
constexpr auto kConnectDeadline = std::chrono::seconds(10);
/// In mid-run others are waiting: a path that takes longer than this is passed over, and tried again in the next round.
constexpr auto kMoveAttempt = std::chrono::seconds(2);
/// Then this worker gives up. Shorter than the shard waits for it.
constexpr auto kMoveDeadline = std::chrono::seconds(20);
constexpr auto kBetweenRounds = std::chrono::milliseconds(100);

}  // namespace

absl::Status Client::Impl::connect(ShardLink& link, TimePoint deadline) {
  bool may_change = false;
  for (size_t i = 0; i < link.candidates.size(); ++i) {
    transport::Candidate& candidate = link.candidates[i];
    if (candidate.refused.empty()) {
      const absl::Status connected = try_candidate(link, i, std::min(deadline, Clock::now() + kConnectDeadline));
      if (connected.ok()) return absl::OkStatus();
      GRADRAIL_RETURN_IF_ERROR(failure());
      candidate.refused = message_of(connected);
      may_change = may_change || !absl::IsFailedPrecondition(connected);
    }
    if (!options_.fallback) {
      return absl::FailedPreconditionError(
          fmt::format("shard {} at {}: transport {} refused: {} (and fallback is forbidden)", link.shard_index,
                      controls_[link.ps_index]->address(), candidate.name, candidate.refused));
    }
  }
  const std::string why = fmt::format("shard {} at {}: no transport can be used: {}", link.shard_index,
                                      controls_[link.ps_index]->address(), transport::explain_none(link.candidates));
  // Lists of the two ends that do not meet, a device that is not there: another start would end in the same way.
  return may_change ? absl::UnavailableError(why) : absl::FailedPreconditionError(why);
}

absl::StatusOr<OpenContext*> Client::Impl::open_context(const std::string& name) {
  for (const auto& context : contexts_) {
    if (context->transport == name) return context.get();
  }
  const absl::StatusOr<const transport::Transport*> found = transport::find_transport(name);
  if (!found.ok()) return found.status();
  absl::StatusOr<std::unique_ptr<transport::Context>> context =
      (*found)->open({.bind_host = options_.bind_host,
                      .rdma_only = options_.rdma_only || options_.require_rdma,
                      .ofi_provider = options_.ofi_provider});
  if (!context.ok()) return context.status();
  absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> parameters =
      transport::register_on(stats_.registered, **context, parameters_.span(), transport::Access::remote_write);
  if (!parameters.ok()) return parameters.status();
  // Only a transport that maps lets the shard read gradients; elsewhere they are pushed. A GPU of the shard's reads
  // them by itself, and a driver pins nothing that cannot be written.
  const auto mapped = a_shard_is_on_gpu_ ? transport::Access::remote_read_write : transport::Access::remote_read;
  const auto access = (*context)->capabilities().direct_map ? mapped : transport::Access::local;
  absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> gradients =
      transport::register_on(stats_.registered, **context, gradients_.span(), access);
  if (!gradients.ok()) return gradients.status();
  contexts_.push_back(std::make_unique<OpenContext>(
      OpenContext{name, *std::move(context), *std::move(parameters), *std::move(gradients)}));
  wait_set_.add(contexts_.back()->context.get());
  return contexts_.back().get();
}

/// What a device's library keeps of connections that ended badly may be in the way of the next one: that begins afresh.
void Client::Impl::close_unused_contexts() {
  std::erase_if(contexts_, [&](const std::unique_ptr<OpenContext>& open) {
    const auto uses = [&](const std::unique_ptr<ShardPath>& path) {
      return path != nullptr && &path->context() == open.get();
    };
    for (const auto& link : links_) {
      if (uses(link->path) || uses(link->trial)) return false;
    }
    wait_set_.remove(open->context.get());
    return true;
  });
}

absl::StatusOr<std::unique_ptr<ShardPath>> Client::Impl::open_path(ShardLink& link,
                                                                   const transport::Candidate& candidate, GpuWay way,
                                                                   TimePoint deadline) {
  const auto endpoint = std::find_if(link.endpoints.begin(), link.endpoints.end(),
                                     [&](const auto& e) { return e.transport() == candidate.name; });
  if (endpoint == link.endpoints.end()) return absl::UnavailableError("the shard does not listen on it");
  const absl::StatusOr<OpenContext*> context = open_context(candidate.name);
  if (!context.ok()) return context.status();
  ps::proto::Hello hello;
  *hello.mutable_member() = member();
  hello.set_host_slots(link.host_slots);
  return ShardPath::open(link, **context, endpoint->address(), std::move(hello),
                         ps::data_key(options_.security.secret, tokens_[link.ps_index]), stats_.registered,
                         options_.place_memory, {gpu_.get(), way, options_.device.key}, deadline);
}

absl::Status Client::Impl::establish(ShardPath& path, Phase until, TimePoint deadline) {
  transport::Completion completions[16];
  while (path.phase() != until) {
    const bool in_need = path.advance();
    if (path.phase() == Phase::failed) return absl::UnavailableError(path.why());
    GRADRAIL_RETURN_IF_ERROR(failure());
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(path.phase() == Phase::checking
                                             ? "a transfer to the shard and back did not arrive in time"
                                             : "the shard did not answer in time");
    }
    const auto patience = std::chrono::milliseconds(in_need ? 1 : 100);
    const size_t count = wait_set_.wait(absl::MakeSpan(completions), std::min(deadline, Clock::now() + patience));
    for (size_t i = 0; i < count; ++i) take(completions[i]);
  }
  return absl::OkStatus();
}

absl::Status Client::Impl::allowed(const ShardPath& path) const {
  if (!options_.require_rdma || path.connection().uses_rdma()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{} is carried by no RDMA device, and RDMA is required", path.connection().path()));
}

/// Over a candidate each way out of GPU memory, the best first; what is wrong with the candidate itself ends it.
absl::Status Client::Impl::try_candidate(ShardLink& link, size_t candidate, TimePoint deadline) {
  link.ways_refused.clear();
  link.host_slots = false;
  for (const GpuWay way : ways(link)) {
    absl::Status tried = try_way(link, candidate, way, deadline);
    if (started_ && link.ways_refused.erase(way) > 0) {
      // It was good before: what died now may have been the connection, and whoever stages on the best path stays
      // there.
      tried = try_way(link, candidate, way, deadline);
    }
    if (!link.ways_refused.contains(way)) return tried;
    GRADRAIL_RETURN_IF_ERROR(failure());
  }
  return no_way(link);
}

absl::Status Client::Impl::try_way(ShardLink& link, size_t candidate, GpuWay way, TimePoint deadline) {
  const auto refuse = [&](std::string_view why) { return absl::FailedPreconditionError(link.ways_refused[way] = why); };
  const absl::StatusOr<OpenContext*> context = open_context(link.candidates[candidate].name);
  if (!context.ok()) return context.status();
  if (const absl::Status reached = reach_gpu(**context, way); !reached.ok()) return refuse(message_of(reached));
  if (gpu_ != nullptr) drop_trials();
  absl::StatusOr<std::unique_ptr<ShardPath>> path = open_path(link, link.candidates[candidate], way, deadline);
  if (!path.ok()) return path.status();
  const absl::Status checked = establish(**path, Phase::ready, deadline);
  GRADRAIL_RETURN_IF_ERROR(failure());
  if (!checked.ok() && (*path)->slots_on_gpu()) {
    // Which of the two GPUs is to blame? Without the shard's there is an answer.
    spdlog::warn("shard {}: the way into its GPU's memory is no good: {}", link.shard_index, message_of(checked));
    link.host_slots = true;
    path->reset();
    return try_way(link, candidate, way, deadline);
  }
  if (!checked.ok() && (*path)->was_welcome() && way != GpuWay::staged) return refuse(message_of(checked));
  GRADRAIL_RETURN_IF_ERROR(checked);
  if ((*path)->way() != way) return refuse((*path)->device_refused());
  GRADRAIL_RETURN_IF_ERROR(allowed(**path));
  (*path)->activate();
  GRADRAIL_RETURN_IF_ERROR(establish(**path, Phase::active, deadline));
  use(link, *std::move(path), candidate);
  return absl::OkStatus();
}

void Client::Impl::use(ShardLink& link, std::unique_ptr<ShardPath> path, size_t candidate) {
  link.path = std::move(path);
  link.candidate = candidate;
  link.candidates[candidate].refused.clear();
  link.bytes = &path_bytes_[link.path->name()];
  const auto better_lost = [&](const transport::Candidate& other) { return !other.never && !other.refused.empty(); };
  const auto end = link.candidates.begin() + static_cast<ptrdiff_t>(candidate);
  const bool is_best = std::none_of(link.candidates.begin(), end, better_lost);
  const bool for_good = options_.failback == Duration::zero() || !options_.fallback;
  link.next_trial = is_best || for_good ? TimePoint::max() : Clock::now() + options_.failback;
  next_come_back_ = std::min(next_come_back_, link.next_trial);
}

absl::Status Client::Impl::move_lost_links() {
  link_lost_ = false;  // whatever is lost from here on sets it again
  for (const auto& link : links_) {
    // Without a path: a move was broken off, for the ps of another link was lost at the same time.
    const bool lost = link->path == nullptr ? !link->buckets.empty() : link->path->phase() == Phase::failed;
    if (!lost) continue;
    absl::Status moved = move(*link);
    link_lost_ = link_lost_ || !moved.ok();
    if (!moved.ok()) return moved;
  }
  return absl::OkStatus();
}

absl::Status Client::Impl::move(ShardLink& link) {
  const TimePoint start = Clock::now();
  const std::string where = fmt::format("shard {} at {}", link.shard_index, controls_[link.ps_index]->address());
  const std::string lost = link.path == nullptr ? "its path" : link.path->describe();
  const std::string cause = link.path == nullptr ? "it was not replaced yet" : link.path->why();
  const size_t former = link.candidate;
  link.path.reset();
  link.trial.reset();
  close_unused_contexts();
  link.trial_candidate = SIZE_MAX;  // the next trial begins with the best
  std::erase_if(backlog_, [&](const Unposted& unposted) { return unposted.link == &link; });
  std::erase_if(staged_, [&](const Staged& staged) { return staged.link == &link; });
  link.candidates[former].refused = fmt::format("lost in mid-run: {}", cause);
  // Another path first: the one that was lost may take its whole time to fail again. All of them, round after round:
  // the network as a whole may be away for a moment.
  std::vector<size_t> order;
  for (size_t i = 0; i < link.candidates.size(); ++i) {
    if (i != former && !link.candidates[i].never && options_.fallback) order.push_back(i);
  }
  order.push_back(former);
  std::string last_error;
  while (Clock::now() < start + kMoveDeadline) {
    for (const size_t candidate : order) {
      const absl::Status moved = try_candidate(link, candidate, Clock::now() + kMoveAttempt);
      GRADRAIL_RETURN_IF_ERROR(failure());
      if (moved.ok()) {
        ++stats_.moves;
        spdlog::warn("{}: {} was lost ({}); goes on over {} after {:.2f} s", where, lost, cause, link.path->describe(),
                     seconds_since(start));
        replay(link);
        return absl::OkStatus();
      }
      close_unused_contexts();
      last_error = fmt::format("{}: {}", link.candidates[candidate].name, message_of(moved));
      if (candidate != former) link.candidates[candidate].refused = message_of(moved);
    }
    // Whether the ps dismissed us: then it said why, and no path will do.
    const absl::Status dismissed = controls_[link.ps_index]->why_dismissed(member());
    if (!dismissed.ok()) fail(dismissed);
    GRADRAIL_RETURN_IF_ERROR(failure());
    if (asked_to_stop()) return absl::CancelledError(fmt::format("stopped while {} was lost", where));
    transport::Completion completions[16];
    const size_t count = wait_set_.wait(absl::MakeSpan(completions), Clock::now() + kBetweenRounds);
    for (size_t i = 0; i < count; ++i) take(completions[i]);
  }
  fail(absl::UnavailableError(fmt::format("{} was lost: {}: {} ({}), and no other path works ({})",
                                          controls_[link.ps_index]->name(), where, lost, cause, last_error)));
  return failure();
}

void Client::Impl::replay(ShardLink& link) {
  // What was applied already is answered again and counts once: the shard knows (incarnation, step, bucket).
  for (uint32_t i = static_cast<uint32_t>(link.buckets.size()); i-- > 0;) {
    ShardLink::Bucket& bucket = link.buckets[i];
    if (!exchanging_ || !bucket.pushed || !bucket.outstanding) continue;
    bucket.pushed = false;
    push(link, i);
  }
}

}  // namespace gradrail::worker
