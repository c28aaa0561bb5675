#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "base/mutex.h"
#include "gradrail/clock.h"
#include "launch/rendezvous/assignment_table.h"
#include "launch/rendezvous/rank_stream.h"
#include "ps/admission/gate.h"

namespace gradrail::launch {

struct RankServerOptions {
  std::string address;     ///< host:port that all ranks have
  std::string secret;      ///< secret of the job; "": none
  proto::RankHello hello;  ///< hello of this rank; the others must agree with it
  Duration timeout = std::chrono::seconds(60);
  std::function<void(const std::string&)> say = [](const std::string&) {};  ///< progress for users
};

/// The first rank: all others join it.
/// Threads  One, beside that of the gate.
class RankServer {
 public:
  /// Waits for all ranks. Refuses ranks of another job and ranks that exist already.
  /// Errors  DEADLINE_EXCEEDED: the missing tasks. FAILED_PRECONDITION: no server can listen at the address; a rank of
  ///         this job has another version, number of ranks or number of ps.
  static absl::StatusOr<std::unique_ptr<RankServer>> gather(const RankServerOptions& options);

  const AssignmentTable& assignments() const { return assignments_; }
  /// By rank; that of this rank is null.
  std::vector<RankStreamPtr>& streams() { return streams_; }

 private:
  RankServer(const RankServerOptions& options, FileDescriptor arrived);
  absl::Status listen();
  absl::Status wait_for_all();
  void take_arrivals();
  void wait_for_bytes(TimePoint deadline) const;
  absl::Status take_hellos();
  void forget_ended();
  absl::Status admit(RankStreamPtr stream, proto::RankHello hello);
  std::string mismatch(const proto::RankHello& hello) const;
  void close();

  const RankServerOptions options_;
  AssignmentTable assignments_;
  std::vector<RankStreamPtr> waiting_;  ///< their hellos have not arrived
  std::vector<RankStreamPtr> streams_;

  const FileDescriptor arrived_;  ///< eventfd
  Mutex mutex_;
  std::vector<RankStreamPtr> arrivals_ ABSL_GUARDED_BY(mutex_);
  bool is_complete_ ABSL_GUARDED_BY(mutex_) = false;  ///< all have joined: `arrivals_` are refused
  std::unique_ptr<ps::AdmissionGate> gate_;           ///< last: its thread uses the rest
};

}  // namespace gradrail::launch
