#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launch/etcd/etcd.h"
#include "ps/protocol/cluster_spec.h"

namespace gradrail::launch {

/// How many tasks a run begins with.
struct Sizes {
  uint32_t ps = 1;
  uint32_t workers = 1;
  bool operator==(const Sizes&) const = default;
};

/// The value of a task's key, PREFIX/ps/0:
///
///   {"address": "10.0.0.1:40123", "id": "8f3c…", "ps": 1, "workers": 3}
///
/// A ps without a port does not listen yet. The id separates two tasks that claim the same place.
struct TaskRecord {
  std::string address;
  std::string id;
  Sizes sizes;
};
std::string to_text(const TaskRecord& record);
/// Nothing if the text is not a record of gradrail.
std::optional<TaskRecord> task_record_from(const std::string& text);

/// "/gradrail/JOB/"
std::string prefix_of(const std::string& job);
std::string key_of(const std::string& job, const ps::TaskId& task);

/// The tasks of a job that are registered at one moment.
class Roster {
 public:
  Roster(const std::string& job, const Etcd::Listing& listing);

  struct Member {
    ps::TaskId task;
    std::optional<TaskRecord> record;  ///< nothing: the value cannot be read; the key is in use all the same
  };
  const Member* find(const ps::TaskId& task) const;
  /// The task that gave the size of the run; null: none yet.
  const Member* first_with_sizes() const;
  /// The first free index of a job's tasks; nothing below `limit`.
  std::optional<uint32_t> first_free(const std::string& job, uint32_t limit) const;

 private:
  std::vector<Member> members_;
};

/// The sizes that hold for a new task, which may have `requested` some. Nothing: no task has given them yet.
/// Errors  INVALID_ARGUMENT: names the flag, and the task that gave other sizes.
absl::StatusOr<std::optional<Sizes>> agreed_sizes(const Roster& roster, const std::optional<Sizes>& requested);

}  // namespace gradrail::launch
