#include "tools/monitor/top_table.h"

#include <algorithm>
#include <map>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/control_channel.h"

namespace gradrail::tools {
namespace {

/// Half of the middle pace, so that normal differences between hosts give no note.
constexpr double kSlow = 0.5;         // share of the pace in the middle
constexpr int kSilentHeartbeats = 6;  // 3 s in small runs
constexpr double kLongExchangeS = 1;  // longer than any that only carries bytes: it waits for another task

struct Row {
  std::string task, step, rate, p50, p99, staleness, path, note;
};

std::string line_of(const Row& row) {
  std::string line = fmt::format("{:<9} {:>9} {:>9} {:>9} {:>9} {:>9}  {:<24} {}", row.task, row.step, row.rate,
                                 row.p50, row.p99, row.staleness, row.path, row.note);
  // Other tasks send names and reasons: a terminal must not execute them.
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  // No spaces at the end: tests and scripts compare lines.
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string time_text(double seconds) {
  if (seconds <= 0) return "-";
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.1f} s", seconds);
}

std::string rate_text(double per_second) {
  return per_second < 100 ? fmt::format("{:.1f}/s", per_second) : fmt::format("{:.0f}/s", per_second);
}

double ps_rate(const PsAnswer& answer, const std::vector<PsAnswer>& before) {
  for (const PsAnswer& earlier : before) {
    if (earlier.address != answer.address || !earlier.unreachable.empty()) continue;
    const double seconds = std::chrono::duration<double>(answer.at - earlier.at).count();
    // A ps that was started again counts from its checkpoint.
    if (seconds > 0 && answer.stats.global_step() >= earlier.stats.global_step())
      return static_cast<double>(answer.stats.global_step() - earlier.stats.global_step()) / seconds;
  }
  // Negative: no rate is known, while 0 means that nothing moves.
  return -1.0;
}

Row ps_row(size_t index, const PsAnswer& answer, const std::vector<PsAnswer>& before) {
  Row row{.task = fmt::format("ps/{}", index)};
  if (!answer.unreachable.empty()) {
    row.step = row.rate = row.p50 = row.p99 = row.staleness = "-";
    row.path = answer.address;
    row.note = answer.unreachable;
    return row;
  }
  const ps::proto::StatsReply& stats = answer.stats;
  row.step = fmt::format("{}", stats.global_step());
  const double rate = ps_rate(answer, before);
  row.rate = rate < 0 ? "-" : rate_text(rate);
  row.p50 = row.p99 = row.staleness = "-";
  row.path = answer.address;
  row.note = fmt::format("{} live, {} shards", stats.live_workers_size(), stats.shard_count());
  if (!stats.formats().empty()) row.note += fmt::format(", {}", stats.formats());
  if (stats.has_grace_window_s()) row.note += fmt::format(", grace {}", time_text(stats.grace_window_s()));
  if (stats.non_finite_buckets() > 0)
    row.note += fmt::format(", {} buckets not finite ({})", stats.non_finite_buckets(), stats.non_finite());
  if (stats.waiting_for_size() > 0) row.note += fmt::format(", waits for {}", fmt::join(stats.waiting_for(), ", "));
  return row;
}

/// The newest report among all answers.
std::map<uint32_t, ps::proto::StatsReply::Worker> latest_reports(const std::vector<PsAnswer>& answers) {
  std::map<uint32_t, ps::proto::StatsReply::Worker> latest;
  for (const PsAnswer& answer : answers) {
    for (const ps::proto::StatsReply::Worker& worker : answer.stats.workers()) {
      const auto [known, added] = latest.try_emplace(worker.task_index(), worker);
      if (!added && worker.age_s() < known->second.age_s()) known->second = worker;
    }
  }
  return latest;
}

double middle_pace(const std::map<uint32_t, ps::proto::StatsReply::Worker>& workers) {
  std::vector<double> paces;
  for (const auto& [index, worker] : workers) {
    // A worker that ended has the pace 0 and would lower the middle. NaN has no place in an order.
    const double pace = worker.report().exchanges_per_s();
    if (worker.ended().empty() && pace >= 0) paces.push_back(pace);
  }
  if (paces.size() < 2) return 0.0;  // no other worker to compare with
  // An even number gives the faster of the two: of two workers one can be slow.
  std::nth_element(paces.begin(), paces.begin() + static_cast<ptrdiff_t>(paces.size() / 2), paces.end());
  return paces[paces.size() / 2];
}

std::string worker_note(const ps::proto::StatsReply::Worker& worker, double middle,
                        const std::vector<std::string>& awaited, double silent_s) {
  if (!worker.ended().empty()) return worker.ended();
  const ps::proto::WorkerReport& report = worker.report();
  std::vector<std::string> notes;
  if (worker.age_s() > silent_s) notes.push_back(fmt::format("silent for {:.0f} s", worker.age_s()));
  if (std::find(awaited.begin(), awaited.end(), worker.name()) != awaited.end()) notes.emplace_back("awaited");
  // A worker in a long exchange waits for another one and is not slow itself.
  const bool waits = report.under_way_s() > kLongExchangeS;
  if (waits) notes.push_back(fmt::format("in an exchange for {:.1f} s", report.under_way_s()));
  if (!waits && report.exchanges_per_s() < kSlow * middle) notes.emplace_back("slow");
  if (report.fallbacks() > 0) notes.push_back(fmt::format("{} fallbacks", report.fallbacks()));
  return fmt::format("{}", fmt::join(notes, ", "));
}

Row worker_row(const ps::proto::StatsReply::Worker& worker, double middle, const std::vector<std::string>& awaited,
               double silent_s) {
  const ps::proto::WorkerReport& report = worker.report();
  return {.task = fmt::format("worker/{}", worker.task_index()),
          .step = fmt::format("{}", report.exchanges()),
          .rate = rate_text(report.exchanges_per_s()),
          .p50 = time_text(report.p50_s()),
          .p99 = time_text(report.p99_s()),
          .staleness = fmt::format("{:.1f}", report.staleness_mean()),
          .path = report.path(),
          .note = worker_note(worker, middle, awaited, silent_s)};
}

}  // namespace

std::vector<std::string> top_table(const std::vector<PsAnswer>& answers, const std::vector<PsAnswer>& before) {
  std::vector<std::string> lines = {line_of({"TASK", "STEP", "RATE", "P50", "P99", "STALENESS", "PATH", "NOTE"})};
  std::vector<std::string> awaited;
  for (size_t i = 0; i < answers.size(); ++i) {
    lines.push_back(line_of(ps_row(i, answers[i], before)));
    awaited.insert(awaited.end(), answers[i].stats.waiting_for().begin(), answers[i].stats.waiting_for().end());
  }
  // A worker reports to each ps: the same worker appears in several answers.
  const auto workers = latest_reports(answers);
  const double middle = middle_pace(workers);
  const Duration interval = ps::heartbeat_interval(workers.size());
  const double silent_s = std::chrono::duration<double>(kSilentHeartbeats * interval).count();
  for (const auto& [index, worker] : workers) lines.push_back(line_of(worker_row(worker, middle, awaited, silent_s)));
  return lines;
}

}  // namespace gradrail::tools
