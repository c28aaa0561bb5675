#include "ps/control/worker_reports.h"

#include <utility>

#include "ps/protocol/control.pb.h"

namespace gradrail::ps {
namespace {

constexpr size_t kLongestText = 200;  // fits on a line, and every path is shorter

}  // namespace

// The type is defined here and not in the header, which then needs no protobuf.
struct WorkerReports::Entry {
  uint64_t incarnation = 0;
  TimePoint at;
  std::string ended;
  proto::WorkerReport report;
};

WorkerReports::WorkerReports() = default;
WorkerReports::~WorkerReports() = default;

void WorkerReports::heard(WorkerIndex worker, uint64_t incarnation, const proto::WorkerReport& report, TimePoint now) {
  auto entry = std::make_unique<Entry>(Entry{.incarnation = incarnation, .at = now, .ended = "", .report = report});
  // Workers choose the text, and it stays in memory until the next incarnation reports.
  if (report.path().size() > kLongestText) entry->report.mutable_path()->resize(kLongestText);
  entries_[worker] = std::move(entry);
}

void WorkerReports::ended(WorkerIndex worker, uint64_t incarnation, const std::string& how) {
  const auto found = entries_.find(worker);
  if (found != entries_.end() && found->second->incarnation == incarnation)
    found->second->ended = how.substr(0, kLongestText);
}

void WorkerReports::add_to(proto::StatsReply& reply, TimePoint now) const {
  for (const auto& [worker, entry] : entries_) {
    proto::StatsReply::Worker* const message = reply.add_workers();
    message->set_task_index(worker);
    message->set_age_s(std::chrono::duration<double>(now - entry->at).count());
    message->set_ended(entry->ended);
    *message->mutable_report() = entry->report;
  }
}

}  // namespace gradrail::ps
