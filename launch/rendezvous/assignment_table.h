#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradrail/cluster.h"
#include "launch/rendezvous/rendezvous.pb.h"

namespace gradrail::launch {

/// The description of this process that it sends to the first rank. The caller adds role, rank and address.
proto::RankHello hello_of(const std::string& job, uint32_t size, uint32_t ps_count);

/// "rank 3", "worker/2", "a ps".
std::string name_of(const proto::RankHello& hello);

/// The tasks that have joined. Each gets the index that its launcher gave, or the first that is free.
class AssignmentTable {
 public:
  AssignmentTable(uint32_t size, uint32_t ps_count) : ps_(ps_count), workers_(size - ps_count) {}

  /// Errors  ALREADY_EXISTS: that index is taken; RESOURCE_EXHAUSTED: more tasks than indices.
  absl::StatusOr<TaskId> take(const proto::RankHello& hello);
  /// Sets the address of ps task 0 to the one that a connected task has reached. An address that other hosts can reach
  /// stays.
  void set_first_ps_address(const std::string& address);
  std::vector<std::string> missing() const;  ///< "ps/1", "worker/0"
  /// Messages of all tasks, ps first; called once no task is missing.
  std::vector<proto::RankHello> hellos() const;
  /// Assignment of a task; called once no task is missing.
  proto::RankAssignment assignment_of(const TaskId& task) const;

 private:
  using Row = std::vector<std::optional<proto::RankHello>>;
  std::string address_of(const proto::RankHello& hello) const;
  Row ps_;
  Row workers_;
};

}  // namespace gradrail::launch
