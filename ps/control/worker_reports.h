#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "gradrail/clock.h"
#include "ps/protocol/mode.h"

namespace gradrail::ps {

namespace proto {
class StatsReply;
class WorkerReport;
}  // namespace proto

/// The last report of each worker, for `gradrail top` and the metrics. A worker that has ended stays listed with the
/// cause until another incarnation reports. The number of workers bounds the memory, because long texts are cut.
/// Threads  The caller's lock (ControlState::mutex).
class WorkerReports {
 public:
  WorkerReports();
  ~WorkerReports();

  void heard(WorkerIndex worker, uint64_t incarnation, const proto::WorkerReport& report, TimePoint now);
  /// Records the end of a worker. `how`: "left", or why it was lost. Ignored unless this incarnation has reported last.
  void ended(WorkerIndex worker, uint64_t incarnation, const std::string& how);
  /// Adds all entries without the names of workers, which Membership has.
  void add_to(proto::StatsReply& reply, TimePoint now) const;

 private:
  struct Entry;
  std::map<WorkerIndex, std::unique_ptr<Entry>> entries_;
};

}  // namespace gradrail::ps
