#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "launch/rendezvous/rendezvous.pb.h"

namespace gradrail::launch {

/// The description of this process that it sends to the first rank. The caller adds the address.
proto::RankHello hello_of(const std::string& job, uint32_t rank, uint32_t size, uint32_t ps_count);

/// The tasks that have joined, by rank. The first ranks are ps tasks, the others workers.
class AssignmentTable {
 public:
  AssignmentTable(uint32_t size, uint32_t ps_count) : ps_count_(ps_count), ranks_(size) {}

  /// Errors  ALREADY_EXISTS: that rank has joined; RESOURCE_EXHAUSTED: the job has no such rank.
  absl::Status take(const proto::RankHello& hello);
  /// Rank `rank` has ended: another process may take its place.
  void forget(uint32_t rank) { ranks_[rank].reset(); }
  /// Sets the address of rank 0 to the one that a connected task has reached. An address that other hosts can reach
  /// stays.
  void set_first_address(const std::string& address);
  std::vector<std::string> missing() const;  ///< "ps/1", "worker/0"
  std::string name_of(uint32_t rank) const;
  /// Messages of all tasks; called once no task is missing.
  std::vector<proto::RankHello> hellos() const;
  /// Assignment of a task; called once no task is missing.
  proto::RankAssignment assignment_of(uint32_t rank) const;

 private:
  std::string address_of(const proto::RankHello& hello) const;

  const uint32_t ps_count_;
  std::vector<std::optional<proto::RankHello>> ranks_;
};

}  // namespace gradrail::launch
