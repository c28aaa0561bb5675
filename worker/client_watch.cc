// What a client lets others see of itself while it works: reports in its heartbeats, dumps of its flight recorder, and
// its marks for a picture of the whole run.
#include "base/status.h"
#include "fmt/format.h"
#include "ps/trace_marks.h"
#include "worker/client_impl.h"

namespace gradrail::worker {

void Client::Impl::report(ps::proto::Ping& ping) const {
  ps::proto::WorkerReport& report = *ping.mutable_report();
  const ClientStats stats = published_.stats();
  const PublishedStats::Recent recent = published_.recent();
  report.set_exchanges(stats.exchange_count);
  report.set_global_step(stats.global_step);
  report.set_exchanges_per_s(recent.exchanges_per_s);
  report.set_p50_s(static_cast<double>(recent.p50_ns) * 1e-9);
  report.set_p99_s(static_cast<double>(recent.p99_ns) * 1e-9);
  report.set_staleness_mean(recent.staleness_mean);
  report.set_under_way_s(std::chrono::duration<double>(published_.under_way(Clock::now())).count());
  report.set_path(stats.paths_in_use);
  report.set_fallbacks(stats.moves);
}

void Client::Impl::hear_of_dumps(uint64_t asked) {
  const uint64_t before = dumps_noticed_.exchange(asked);
  if (before == kNothingNoticed || before == asked)
    return;  // what was asked for before we were here is not our business
  dumps_heard_.fetch_add(1, std::memory_order_relaxed);
  wait_set_.wake();
}

void Client::Impl::answer_dump() {
  const uint32_t signals =
      options_.dump_signals == nullptr ? 0 : options_.dump_signals->load(std::memory_order_relaxed);
  const uint64_t asked = dumps_heard_.load(std::memory_order_relaxed) + signals;
  if (asked == dumped_) return;
  dumped_ = asked;
  if (options_.dump) options_.dump(recorder_.marks());
}

absl::Status Client::Impl::hand_in_trace() {
  ps::proto::TraceRequest request;
  *request.mutable_member() = member();
  *request.mutable_marks() = ps::to_proto(fmt::format("worker/{}", options_.task_index), recorder_.marks());
  const ClockOffset clock = controls_[0]->clock_offset();
  request.mutable_marks()->set_offset_ns(clock.offset_ns);
  request.mutable_marks()->set_bound_ns(clock.bound_ns);
  return controls_[0]->trace(request).status();
}

absl::StatusOr<std::vector<TaskTrace>> Client::Impl::gather_trace() {
  std::vector<TaskTrace> all;
  const ClockOffset first = controls_[0]->clock_offset();
  const auto add = [&all](const std::string& task, std::vector<Mark> marks, ClockOffset clock) {
    for (Mark& mark : marks) mark.at_ns += clock.offset_ns;
    all.push_back({.task = task, .marks = std::move(marks), .bound_ns = clock.bound_ns});
  };
  for (size_t ps = 0; ps < controls_.size(); ++ps) {
    const ClockOffset clock = controls_[ps]->clock_offset();
    ps::proto::TraceRequest request;
    *request.mutable_member() = member();
    for (uint32_t index = 0, count = 1; index < count; ++index) {
      request.set_index(index);
      const absl::StatusOr<ps::proto::TraceReply> reply = controls_[ps]->trace(request);
      if (!reply.ok()) return reply.status();
      count = ps == 0 ? reply->count() : 1;
      absl::StatusOr<std::vector<Mark>> marks = ps::marks_from(reply->marks());
      if (!marks.ok()) return marks.status();
      if (index > 0) {
        add(reply->marks().task(), *std::move(marks), {reply->marks().offset_ns(), reply->marks().bound_ns()});
      } else {
        // From its clock to ours, and from ours to that of ps 0.
        add(reply->marks().task(), *std::move(marks),
            ps == 0 ? ClockOffset{0, 0}
                    : ClockOffset{first.offset_ns - clock.offset_ns, first.bound_ns + clock.bound_ns});
      }
    }
  }
  add(fmt::format("worker/{}", options_.task_index), recorder_.marks(), first);
  return all;
}

}  // namespace gradrail::worker
