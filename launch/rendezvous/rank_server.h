#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradrail/clock.h"
#include "launch/rendezvous/assignment_table.h"
#include "launch/rendezvous/rank_stream.h"

namespace gradrail::launch {

struct RankServerOptions {
  std::string address;       ///< host:port that all ranks have
  std::string secret;        ///< secret of the job; "": none
  proto::RankHello hello;    ///< hello of this rank; the others must agree with it
  bool has_own_task = true;  ///< false: a scheduler, which takes no index
  Duration timeout = std::chrono::seconds(60);
  int max_message_bytes = 64 << 10;
  std::function<void(const std::string&)> say = [](const std::string&) {};  ///< progress for users
};

/// The first rank: all others join it.
/// Threads  One, beside those of gRPC.
class RankServer {
 public:
  struct JoinedRank {
    TaskId task;
    RankStreamPtr stream;
  };

  /// Waits for all ranks. Refuses ranks of another job and ranks that exist already.
  /// Errors  DEADLINE_EXCEEDED: the missing tasks. FAILED_PRECONDITION: no server can listen at the address; a rank of
  ///         this job has another version, number of ranks or number of ps.
  static absl::StatusOr<std::unique_ptr<RankServer>> gather(const RankServerOptions& options);
  ~RankServer();

  const AssignmentTable& assignments() const { return assignments_; }
  std::vector<JoinedRank>& joined() { return joined_; }

 private:
  class Stream;
  class Service;
  explicit RankServer(const RankServerOptions& options);
  absl::Status listen();
  absl::Status wait_for_all();
  absl::Status admit(RankStreamPtr stream, const proto::RankHello& hello);
  std::string mismatch(const proto::RankHello& hello) const;

  const RankServerOptions options_;
  AssignmentTable assignments_;
  std::unique_ptr<Service> service_;  ///< ends after the streams
  std::vector<JoinedRank> joined_;
};

}  // namespace gradrail::launch
