// What ControlService tells those who watch: figures, and marks of flight recorders.
#include <algorithm>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/control_service.h"
#include "ps/control_status.h"
#include "ps/trace_marks.h"

namespace gradrail::ps {

absl::StatusOr<proto::StatsReply> ControlService::gather_stats() {
  proto::StatsReply reply;
  for (const auto& shard : shards_) {
    absl::StatusOr<Shard::Stats> stats = shard->stats();
    if (!stats.ok()) return stats.status();
    reply.set_global_step(std::max<uint64_t>(reply.global_step(), stats->version));
    reply.set_updates(reply.updates() + stats->updates);
    reply.set_dropped(reply.dropped() + stats->dropped);
    for (const Shard::Stats::Path& path : stats->paths) {
      proto::StatsReply::Path* message = nullptr;
      for (proto::StatsReply::Path& known : *reply.mutable_paths()) {
        if (known.path() == path.path) message = &known;
      }
      if (message == nullptr) message = reply.add_paths();
      message->set_path(path.path);
      message->set_bytes_in(message->bytes_in() + path.bytes_in);
      message->set_bytes_out(message->bytes_out() + path.bytes_out);
    }
    std::lock_guard lock(mutex_);
    if (reply.waiting_for().empty()) {
      for (const WorkerIndex worker : stats->waiting_for) reply.add_waiting_for(coordinator_.name_of(worker));
    }
  }
  if (const Duration::rep saved = saved_at_.load(); saved != 0)
    reply.set_checkpoint_age_s(seconds_since(TimePoint(Duration(saved))));
  std::lock_guard lock(mutex_);
  reply.set_epoch(coordinator_.epoch());
  reply.set_chief(coordinator_.chief());
  for (std::string& name : coordinator_.live_names()) reply.add_live_workers(std::move(name));
  reports_.add_to(reply, Clock::now());
  for (proto::StatsReply::Worker& worker : *reply.mutable_workers())
    worker.set_name(coordinator_.name_of(worker.task_index()));
  if (partner_ != nullptr && !stands_by_) reply.set_standby(partner_->state());
  reply.set_shard_count(static_cast<uint32_t>(shards_.size()));
  return reply;
}

grpc::Status ControlService::Stats(grpc::ServerContext*, const proto::StatsRequest* request, proto::StatsReply* reply) {
  if (request->dump()) dumps_.fetch_add(1, std::memory_order_relaxed);
  absl::StatusOr<proto::StatsReply> gathered = gather_stats();
  if (!gathered.ok()) return to_grpc(gathered.status());
  *reply = *std::move(gathered);
  return grpc::Status::OK;
}

grpc::Status ControlService::Trace(grpc::ServerContext*, const proto::TraceRequest* request, proto::TraceReply* reply) {
  const proto::Member& member = request->member();
  {
    std::lock_guard lock(mutex_);
    const absl::Status live = coordinator_.heard(member.task_index(), member.incarnation(), Clock::now());
    if (!live.ok()) return to_grpc(live);
    if (request->has_marks()) {
      const absl::StatusOr<std::vector<Mark>> checked = marks_from(request->marks());
      if (!checked.ok()) return to_grpc(checked.status());
      traces_[member.task_index()] = request->marks();
    }
    reply->set_count(static_cast<uint32_t>(1 + traces_.size()));
    if (request->index() > traces_.size()) return to_grpc(absl::NotFoundError("no such marks"));
    if (request->index() > 0) *reply->mutable_marks() = std::next(traces_.begin(), request->index() - 1)->second;
  }
  if (request->index() > 0 || request->has_marks()) return grpc::Status::OK;
  std::vector<Mark> marks;
  for (const auto& shard : shards_) {
    const absl::StatusOr<std::vector<Mark>> some = shard->marks();
    if (!some.ok()) return to_grpc(some.status());
    marks.insert(marks.end(), some->begin(), some->end());
  }
  std::stable_sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) { return a.at_ns < b.at_ns; });
  *reply->mutable_marks() = to_proto(fmt::format("ps/{}", options_.task_index), marks);
  return grpc::Status::OK;
}

}  // namespace gradrail::ps
