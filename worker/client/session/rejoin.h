#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "gradrail/client.h"
#include "gradrail/clock.h"
#include "worker/client/exchange.h"
#include "worker/client/paths/path_manager.h"
#include "worker/client/run_failure.h"
#include "worker/client/session/session.h"
#include "worker/client/telemetry.h"

namespace gradrail::worker {

/// The remedy for a lost ps that no backup replaces and that is started again (RecoveryOptions::rejoin_timeout). This
/// worker leaves all ps tasks and joins them again. It repeats the steps that are missing in the checkpoint of the
/// restarted ps. Also the remedy for this worker's own loss, if it was only silent: it joins the same ps tasks again.
/// Threads  Owner thread.
class Rejoin {
 public:
  /// The steps of joining, which the client does in the same way the first time.
  struct Steps {
    std::function<absl::Status(TimePoint deadline)> join_cluster;
    std::function<absl::Status()> start;  ///< offers or fetches parameters
  };

  /// All references outlive this.
  Rejoin(const ClientOptions& options, RunFailure& failure, Telemetry& telemetry, Exchange& exchange,
         PathManager& paths, Session& session, Steps steps);

  /// Joins for the first time. A ps that is lost or starts again meanwhile is joined again.
  absl::Status join_first(TimePoint deadline);
  /// Whether the run has failed by the loss of a ps, and this worker is to wait for it, or by its own silence. After
  /// Failover::recover().
  bool is_due() const;
  /// Waits for the ps and joins again. The exchange under way is over then, and position() may be smaller.
  absl::Status run();
  bool is_under_way() const { return under_way_; }

  /// Steps of this run behind this worker; Client::position().
  uint64_t position() const { return exchange_.step() - static_cast<uint64_t>(session_.run_base()); }
  /// Marks that the parameters exist for the first time: the run can be rejoined from here on.
  void begin_history();
  /// Records after each step which position belongs to the version that this worker has received.
  void record_position();

 private:
  bool is_awaited() const;

  /// async, ssp: the position of this worker when it received a version. A restored checkpoint has some version: the
  /// entry for it yields the steps of this worker that are lost.
  struct Seen {
    uint64_t version = 0;
    uint64_t position = 0;
  };

  void release();
  absl::Status join_once(TimePoint deadline, uint64_t former_group);
  void restore_position(bool same_servers);
  uint64_t lost_steps() const;
  uint64_t position_at(uint64_t version) const;

  const ClientOptions& options_;
  RunFailure& failure_;
  Telemetry& telemetry_;
  Exchange& exchange_;
  PathManager& paths_;
  Session& session_;
  const Steps steps_;

  bool under_way_ = false;
  uint64_t left_position_ = 0;     ///< position of this worker when the ps was lost
  uint64_t left_step_ = 0;         ///< last step that the incarnation had begun
  uint64_t left_done_step_ = 0;    ///< … and the last one with all answers
  uint64_t unanswered_steps_ = 0;  ///< 1: the last of these steps had been sent, and nothing of it was answered
  std::vector<Seen> history_;      ///< ascending in version and position
  uint64_t history_stride_ = 1;    ///< steps between two entries
};

}  // namespace gradrail::worker
