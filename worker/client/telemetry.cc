#include "worker/client/telemetry.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/trace_marks.h"
#include "worker/client/session/control_link.h"

namespace gradrail::worker {

void Telemetry::count_exchange(Duration took, uint64_t waited_ns) {
  counters_.exchange.record(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count());
  ++counters_.exchange_count;
  counters_.wait_ns += waited_ns;
}

void Telemetry::count_staleness(uint64_t updates) {
  counters_.staleness_sum += updates;
  counters_.staleness_max = std::max(counters_.staleness_max, updates);
  // The last cell collects all larger values, so that the table keeps its size.
  ++counters_.staleness[std::min<uint64_t>(updates, counters_.staleness.size() - 1)];
}

void Telemetry::count_rejoin(uint64_t repeated_steps) {
  ++counters_.rejoins;
  counters_.redone += repeated_steps;
}

void Telemetry::report(ps::proto::Ping& ping) const {
  ps::proto::WorkerReport& report = *ping.mutable_report();
  const ClientStats stats = published_.stats();
  const PublishedStats::Recent recent = published_.recent();
  report.set_exchanges(stats.exchange_count);
  report.set_global_step(stats.global_step);
  report.set_exchanges_per_s(recent.exchanges_per_s);
  report.set_p50_s(static_cast<double>(recent.p50_ns) * 1e-9);
  report.set_p99_s(static_cast<double>(recent.p99_ns) * 1e-9);
  report.set_staleness_mean(recent.staleness_mean);
  report.set_under_way_s(std::chrono::duration<double>(under_way()).count());
  // The published copy, and not the counters: this is the heartbeat's thread.
  report.set_path(stats.paths_in_use);
  report.set_fallbacks(stats.moves);
}

bool Telemetry::on_dump_count(uint64_t requested) {
  if (dump_count_seen_.exchange(requested) == requested) return false;
  // relaxed: the owner reads a number, and no other data with it.
  dumps_requested_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Telemetry::answer_dump() {
  const uint32_t signals =
      options_.hooks.dump_signals == nullptr ? 0 : options_.hooks.dump_signals->load(std::memory_order_relaxed);
  const uint64_t requested = dumps_requested_.load(std::memory_order_relaxed) + signals;
  if (requested == dumps_answered_) return;
  dumps_answered_ = requested;
  // Here and not in the heartbeat's thread: the recorder has no lock and belongs to the owner.
  if (options_.hooks.dump) options_.hooks.dump(recorder_.marks());
}

absl::Status Telemetry::upload_trace(Controls controls, const ps::proto::Member& member) {
  GRADRAIL_CHECK(!controls.empty());
  ps::proto::TraceRequest request;
  *request.mutable_member() = member;
  *request.mutable_marks() = ps::to_proto(fmt::format("worker/{}", options_.task_index), recorder_.marks());
  const ClockOffset clock = controls[0]->clock_offset();
  // The chief converts all marks to the clock of ps task 0, and cannot compare clocks with this worker.
  request.mutable_marks()->set_offset_ns(clock.offset_ns);
  request.mutable_marks()->set_bound_ns(clock.bound_ns);
  return controls[0]->trace(request).status();
}

absl::StatusOr<std::vector<TaskTrace>> Telemetry::gather_trace(Controls controls, const ps::proto::Member& member) {
  GRADRAIL_CHECK(!controls.empty());
  std::vector<TaskTrace> all;
  const ClockOffset first = controls[0]->clock_offset();
  const auto add = [&all](const std::string& task, std::vector<Mark> marks, ClockOffset clock) {
    for (Mark& mark : marks) mark.at_ns += clock.offset_ns;
    all.push_back({.task = task, .marks = std::move(marks), .bound_ns = clock.bound_ns});
  };
  for (size_t i = 0; i < controls.size(); ++i) {
    const ClockOffset clock = controls[i]->clock_offset();
    ps::proto::TraceRequest request;
    *request.mutable_member() = member;
    // Index 0 is the ps task itself. Workers send their marks to ps task 0 only, under the further indices.
    for (uint32_t index = 0, count = 1; index < count; ++index) {
      request.set_index(index);
      GRADRAIL_ASSIGN_OR_RETURN(const ps::proto::TraceReply reply, controls[i]->trace(request));
      // Each worker has sent its marks once.
      if (reply.count() > 1 + kMaxWorkers) {
        return absl::DataLossError(fmt::format("{} reports the marks of {} tasks, and a run has at most {} workers",
                                               controls[i]->name(), reply.count(), kMaxWorkers));
      }
      count = i == 0 ? reply.count() : 1;
      GRADRAIL_ASSIGN_OR_RETURN(std::vector<Mark> marks, ps::marks_from(reply.marks()));
      ClockOffset to_first = {0, 0};
      if (index > 0) {
        to_first = {reply.marks().offset_ns(), reply.marks().bound_ns()};
      } else if (i > 0) {
        // No ps task compares its clock with ps task 0: from that task's clock to ours, and from ours to task 0's.
        to_first = {first.offset_ns - clock.offset_ns, first.bound_ns + clock.bound_ns};
      }
      add(reply.marks().task(), std::move(marks), to_first);
    }
  }
  add(fmt::format("worker/{}", options_.task_index), recorder_.marks(), first);
  return all;
}

}  // namespace gradrail::worker
