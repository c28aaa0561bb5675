#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/launch/rendezvous.h"

namespace gradrail::tools {

/// A task's first words.
struct RankHello {
  std::string version;
  std::string job;  ///< Launch::job: those of another one have come to the wrong address
  ps::Launch::Role role = ps::Launch::Role::by_rank;
  std::optional<uint32_t> rank;
  uint32_t size = 0;
  uint32_t ps_count = 0;
  std::string host_id;
  std::string address;
  std::string cpus;  ///< that it may use, as in taskset
};

RankHello hello_of(const RendezvousRequest& request);
nlohmann::json to_json(const RankHello& hello);
/// Nothing where it is none.
std::optional<RankHello> hello_from(const nlohmann::json& message);

nlohmann::json to_json(const RankAssignment& assignment);
std::optional<RankAssignment> assignment_from(const nlohmann::json& message);

/// "rank 3", "worker/2", "a ps".
std::string name_of(const RankHello& hello);

/// The tasks that have joined. Each gets the index that its launcher gave, or the first that is free.
class AssignmentTable {
 public:
  AssignmentTable(uint32_t size, uint32_t ps_count) : ps_(ps_count), workers_(size - ps_count) {}

  /// Errors  ALREADY_EXISTS: that index is taken; RESOURCE_EXHAUSTED: more tasks than indices.
  absl::StatusOr<ps::TaskId> take(const RankHello& hello);
  /// Sets the address of ps task 0 to the one that a connected task has reached. An address that other hosts can reach
  /// stays.
  void set_first_ps_address(const std::string& address);
  std::vector<std::string> missing() const;  ///< "ps/1", "worker/0"
  /// Once no task is missing.
  RankAssignment assignment_of(const ps::TaskId& task) const;

 private:
  using Row = std::vector<std::optional<RankHello>>;
  std::string address_of(const RankHello& hello) const;
  Row ps_;
  Row workers_;
};

}  // namespace gradrail::tools
