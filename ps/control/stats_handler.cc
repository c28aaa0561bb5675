#include "ps/control/stats_handler.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/control/checkpoint_handler.h"
#include "ps/control/replication.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/trace_marks.h"
#include "transport/rail_bytes.h"

namespace gradrail::ps {
namespace {

/// Adds the bytes of a path to those of the same path at the other shards.
void add_path(const Shard::Stats::Path& path, proto::StatsReply& reply) {
  const auto found = std::find_if(reply.mutable_paths()->begin(), reply.mutable_paths()->end(),
                                  [&](const proto::StatsReply::Path& known) { return known.path() == path.path; });
  proto::StatsReply::Path& message = found == reply.mutable_paths()->end() ? *reply.add_paths() : *found;
  message.set_path(path.path);
  message.set_bytes_in(message.bytes_in() + path.bytes_in);
  message.set_bytes_out(message.bytes_out() + path.bytes_out);
}

}  // namespace

StatsHandler::StatsHandler(ControlContext& context, const CheckpointHandler& checkpoint, Replication& replication)
    : context_(context), checkpoint_(checkpoint), replication_(replication) {}
StatsHandler::~StatsHandler() = default;

absl::Status StatsHandler::stats(const proto::StatsRequest& request, proto::StatsReply& reply) {
  // A counter, not a flag: each task compares it with the value of its last dump.
  if (request.dump()) dumps_.fetch_add(1, std::memory_order_relaxed);
  return gather(reply);
}

absl::Status StatsHandler::add_shards(proto::StatsReply& reply) {
  transport::RailTraffic rails;
  std::map<WorkerIndex, uint64_t> non_finite;
  for (const auto& shard : context_.shards) {
    GRADRAIL_ASSIGN_OR_RETURN(Shard::Stats stats, shard->stats());
    reply.set_global_step(std::max<uint64_t>(reply.global_step(), stats.version));
    reply.set_updates(reply.updates() + stats.updates);
    reply.set_dropped(reply.dropped() + stats.dropped);
    reply.set_non_finite_buckets(reply.non_finite_buckets() + stats.non_finite_buckets);
    for (const auto& [worker, gradients] : stats.non_finite_gradients) non_finite[worker] += gradients;
    if (stats.learned_window.has_value()) {
      const double window_s = std::chrono::duration<double>(*stats.learned_window).count();
      reply.set_grace_window_s(std::max(reply.grace_window_s(), window_s));
    }
    for (const Shard::Stats::Path& path : stats.paths) add_path(path, reply);
    transport::add_traffic(stats.rails, rails);
    if (!reply.waiting_for().empty()) continue;  // one shard is enough: all of them wait for the same workers
    MutexLock lock(context_.state.mutex);
    for (const WorkerIndex worker : stats.waiting_for) {
      reply.add_waiting_for(context_.state.membership.name_of(worker));
    }
  }
  for (const auto& [worker, gradients] : non_finite) {
    proto::StatsReply::NonFinite& message = *reply.add_non_finite_gradients();
    message.set_task_index(worker);
    message.set_gradients(gradients);
  }
  for (const auto& [rail, bytes] : rails) {
    proto::StatsReply::Rail& message = *reply.add_rails();
    message.set_path(rail.path);
    message.set_address(rail.address);
    message.set_bytes_in(bytes.received);
    message.set_bytes_out(bytes.sent);
  }
  return absl::OkStatus();
}

absl::Status StatsHandler::gather(proto::StatsReply& reply) {
  GRADRAIL_RETURN_IF_ERROR(add_shards(reply));  // precedes the lock: it calls the shards
  if (const std::optional<double> age = checkpoint_.age_s(); age.has_value()) reply.set_checkpoint_age_s(*age);
  reply.set_backup(replication_.backup_state());
  reply.set_shard_count(static_cast<uint32_t>(context_.shards.size()));
  ControlState& state = context_.state;
  MutexLock lock(state.mutex);
  reply.set_epoch(state.membership.epoch());
  reply.set_chief(state.membership.chief());
  reply.set_non_finite(state.non_finite);
  if (state.run.agreed != nullptr) {
    const proto::Training& training = state.run.agreed->training();
    if (training.push() != "fp32" || training.returns() != "fp32")
      reply.set_formats(fmt::format("push {}, return {}", training.push(), training.returns()));
  }
  for (std::string& name : state.membership.live_names()) reply.add_live_workers(std::move(name));
  state.reports.add_to(reply, Clock::now());
  for (proto::StatsReply::Worker& worker : *reply.mutable_workers()) {
    worker.set_name(state.membership.name_of(worker.task_index()));
  }
  return absl::OkStatus();
}

absl::Status StatsHandler::trace(const proto::TraceRequest& request, proto::TraceReply& reply) {
  const Membership::Member member = to_member(request.member());
  GRADRAIL_RETURN_IF_ERROR(context_.state.heard(member));
  {
    MutexLock lock(traces_mutex_);
    if (request.has_marks()) {
      // Checked here: the chief would otherwise fail on the marks of another worker.
      GRADRAIL_RETURN_IF_ERROR(marks_from(request.marks()).status());
      // There is one entry for each worker: a repeated upload replaces the former one.
      traces_[member.worker] = std::make_unique<proto::TaskMarks>(request.marks());
    }
    reply.set_count(static_cast<uint32_t>(1 + traces_.size()));
    // Index 0 is this task. Workers follow in the order of their indexes.
    if (request.index() > traces_.size()) return absl::NotFoundError("no such marks");
    if (request.index() > 0) *reply.mutable_marks() = *std::next(traces_.begin(), request.index() - 1)->second;
  }
  // An upload needs no marks in return.
  if (request.index() > 0 || request.has_marks()) return absl::OkStatus();
  return own_marks(*reply.mutable_marks());
}

absl::Status StatsHandler::own_marks(proto::TaskMarks& marks) const {
  std::vector<Mark> all;
  for (const auto& shard : context_.shards) {
    GRADRAIL_ASSIGN_OR_RETURN(const std::vector<Mark> some, shard->marks());
    all.insert(all.end(), some.begin(), some.end());
  }
  // A message carries differences of times, which have to be positive.
  std::stable_sort(all.begin(), all.end(), [](const Mark& a, const Mark& b) { return a.at_ns < b.at_ns; });
  marks = to_proto(fmt::format("ps/{}", context_.options.task_index), all);
  return absl::OkStatus();
}

}  // namespace gradrail::ps
