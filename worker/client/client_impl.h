#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradrail/client.h"
#include "worker/client/exchange.h"
#include "worker/client/model_memory.h"
#include "worker/client/paths/path_manager.h"
#include "worker/client/run_failure.h"
#include "worker/client/session/failover.h"
#include "worker/client/session/identity.h"
#include "worker/client/session/rejoin.h"
#include "worker/client/session/session.h"
#include "worker/client/telemetry.h"

namespace gradrail::worker {

/// The implementation of Client: owns the parts, and decides which of them acts next.
///
///   ModelMemory   parameters and gradients               (no other part allocates them)
///   Identity      task index and incarnation
///   Telemetry     counters, marks, dumps                 <- events from all parts
///   RunFailure    the first error, the lost ps tasks     <- heartbeats, all parts
///   Exchange      step, buckets, backlog, staging        -> PathManager, <- on_answer, on_path_lost
///   PathManager   contexts, candidates, probes           -> ShardPath -> transport
///   Session       membership: describe, join, heartbeat  -> ControlLink -> gRPC
///   Failover      a lost ps that has a backup            -> Session, PathManager
///   Rejoin        a lost ps that is started again        -> Session, PathManager, Exchange
///
/// Each fault has one remedy. A lost path: PathManager replaces it. A lost ps with a backup: Failover. A lost ps
/// without one, and the loss of this worker by silence: Rejoin, where the options allow it. All else ends the run:
/// RunFailure.
/// Threads  As stated for Client.
class ClientImpl {
 public:
  ClientImpl(ClientOptions options, Schema schema, std::shared_ptr<ps::ControlDialer> dialer);
  ~ClientImpl();

  absl::Status join();
  /// Client::join(). `dialer` makes the control connections; null: over gRPC.
  static absl::StatusOr<std::unique_ptr<Client>> join_over(std::shared_ptr<ps::ControlDialer> dialer,
                                                           ClientOptions options, Schema schema);

  // client_impl.cc: the exchange.
  absl::Status start();
  void ready(size_t tensor_index);
  void ready(ps::ElementRange part, float rate, float weight);
  void exchange();
  void exchange(Exchange::Index fragment);
  void progress() { exchange_.progress(); }
  absl::Status wait();
  absl::Status wait(Exchange::Index fragment);
  absl::Status advance(Duration timeout);
  void wake() { paths_.wake(); }  ///< any thread
  absl::Status pull();
  absl::Status set_learning_rate(float rate);
  absl::Status set_weight(float weight);

  // client_control.cc: calls to the ps tasks that a failover may interrupt.
  /// Workers that have not joined yet are waited for until `absent_until`.
  absl::Status barrier(const std::string& name, TimePoint absent_until);
  absl::Status finish_steps();
  absl::Status begin_checkpoint();
  /// Begins again while ps tasks still write another checkpoint. `begun` is the result of the first attempt.
  absl::Status begin_checkpoint_when_free(absl::Status begun, Duration limit);
  absl::StatusOr<std::vector<std::string>> finish_checkpoint();
  absl::StatusOr<std::vector<std::string>> save_checkpoint();
  absl::Status leave(const std::string& failed = "") { return leave_from(0, failed); }
  absl::StatusOr<bool> leave_unless_last();

  /// Position of this worker in the run; Client::position().
  uint64_t position() const { return rejoin_.position(); }
  ClientStats stats() const;
  absl::Status upload_trace();
  absl::StatusOr<std::vector<TaskTrace>> gather_trace();

  // The parts, for Client's functions that concern one of them only.
  ModelMemory& model() { return memory_; }
  const Exchange& buckets() const { return exchange_; }
  const PathManager& paths() const { return paths_; }
  Session& session() { return session_; }
  const Telemetry& telemetry() const { return telemetry_; }

 private:
  // client_control.cc
  bool survives(const absl::Status& call);
  absl::Status of_this_worker(const absl::Status& call) const;
  absl::Status leave_from(uint32_t first_task, const std::string& failed);
  // client_impl.cc
  absl::Status join_cluster(TimePoint deadline);
  absl::Status check_idle(std::string_view call) const;
  void begin(ps::ArrivalKind kind);
  bool begin(Exchange::Index fragment, ps::ArrivalKind kind);
  absl::Status recover();
  absl::Status remedy_failure();
  absl::Status remedy_outside_exchange();
  absl::Status on_idle(Exchange::Index fragment);
  absl::Status finish(Exchange::Index fragment);
  absl::Status prepare_offer();
  absl::Status set_started();
  void log_missing_peers(Exchange::Index fragment);

  ClientOptions options_;
  Identity identity_;
  ModelMemory memory_;
  Telemetry telemetry_;
  RunFailure failure_;
  Exchange exchange_;
  PathManager paths_;
  Session session_;  ///< declared after all parts that its heartbeats call
  Failover failover_;
  Rejoin rejoin_;

  bool started_ = false;  ///< parameters for the computation of gradients exist
  bool left_ = false;
  TimePoint next_notice_;  ///< time of the next report of the peers that this exchange waits for
};

}  // namespace gradrail::worker
