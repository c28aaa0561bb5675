#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/clock.h"
#include "ps/control.pb.h"
#include "ps/protocol.h"

namespace gradrail::ps {

/// What workers last said of themselves, for whoever watches. Those that have ended stay, and why, until another
/// incarnation takes their place. Bounded by the number of workers: what is too long is cut.
/// Threads  The caller's lock.
class WorkerReports {
 public:
  void heard(WorkerIndex worker, uint64_t incarnation, const proto::WorkerReport& report, TimePoint now);
  void ended(WorkerIndex worker, uint64_t incarnation, const std::string& how);
  /// Names are left to the caller.
  void add_to(proto::StatsReply& reply, TimePoint now) const;

 private:
  struct Entry {
    uint64_t incarnation = 0;
    TimePoint at;
    std::string ended;
    proto::WorkerReport report;
  };
  std::map<WorkerIndex, Entry> entries_;
};

}  // namespace gradrail::ps
