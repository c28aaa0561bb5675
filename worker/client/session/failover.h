#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "gradrail/client.h"
#include "gradrail/clock.h"
#include "worker/client/exchange.h"
#include "worker/client/paths/path_manager.h"
#include "worker/client/run_failure.h"
#include "worker/client/session/identity.h"
#include "worker/client/session/session.h"
#include "worker/client/telemetry.h"

namespace gradrail::worker {

/// The remedy for a lost ps that has a backup: this worker continues there as the same member, from the step that it is
/// at. Nothing is lost and no update is applied twice: the backup has all updates that any worker has an answer to.
/// Threads  Owner thread.
class Failover {
 public:
  /// All references outlive this.
  Failover(const ClientOptions& options, RunFailure& failure, Telemetry& telemetry, Exchange& exchange,
           PathManager& paths, Session& session);

  /// Replaces all lost ps tasks by their backups, and returns the failure that this does not remedy. A heartbeat may
  /// record a loss after this call has looked: the caller must not look again, and the next call remedies it.
  absl::Status recover();
  /// Whether a call to a ps can be repeated: the ps was lost, and its backup has taken over.
  bool survives(const absl::Status& call);

 private:
  struct Successor;

  absl::Status switch_to_successor(uint32_t ps_index, const absl::Status& cause);
  absl::StatusOr<Successor> find_successor(uint32_t ps_index);
  absl::Status request_takeover(uint32_t ps_index, Successor& task, TimePoint describe_deadline,
                                TimePoint join_deadline);
  ps::proto::JoinRequest takeover_request(uint32_t ps_index) const;
  absl::Status connect_shards(uint32_t ps_index, const ps::proto::DescribeReply& described,
                              const ps::proto::JoinReply& joined);

  const ClientOptions& options_;
  RunFailure& failure_;
  Telemetry& telemetry_;
  Exchange& exchange_;
  PathManager& paths_;
  Session& session_;
};

}  // namespace gradrail::worker
