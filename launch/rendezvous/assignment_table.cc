#include "launch/rendezvous/assignment_table.h"

#include <algorithm>

#include "base/net_address.h"
#include "base/version.h"
#include "fmt/format.h"
#include "topology/pin.h"
#include "transport/registry.h"

namespace gradrail::launch {

proto::RankHello hello_of(const std::string& job, uint32_t size, uint32_t ps_count) {
  proto::RankHello hello;
  hello.set_version(build_version());
  hello.set_job(job);
  hello.set_size(size);
  hello.set_ps_count(ps_count);
  hello.set_host_id(transport::host_id());
  hello.set_cpus(topology::usable_cpus().to_string());
  return hello;
}

std::string name_of(const proto::RankHello& hello) {
  if (hello.role().empty()) return fmt::format("rank {}", hello.rank());
  return hello.has_rank() ? fmt::format("{}/{}", hello.role(), hello.rank()) : fmt::format("a {}", hello.role());
}

absl::StatusOr<TaskId> AssignmentTable::take(const proto::RankHello& hello) {
  const bool by_rank = hello.role().empty();
  const bool is_ps = by_rank ? hello.rank() < ps_.size() : hello.role() == "ps";
  Row& row = is_ps ? ps_ : workers_;
  size_t index = hello.rank();
  // The first ranks are ps, the others workers.
  if (by_rank && !is_ps) index -= ps_.size();
  if (!by_rank && !hello.has_rank())
    index = std::find_if(row.begin(), row.end(), [](const auto& taken) { return !taken; }) - row.begin();
  if (index >= row.size())
    return absl::ResourceExhaustedError(
        fmt::format("there are {} {} tasks, and no more", row.size(), is_ps ? "ps" : "worker"));
  if (row[index]) return absl::AlreadyExistsError(fmt::format("there is another {}", name_of(hello)));
  row[index] = hello;
  return TaskId{is_ps ? "ps" : "worker", static_cast<uint32_t>(index)};
}

void AssignmentTable::set_first_ps_address(const std::string& address) {
  const std::string& known = ps_.front()->address();
  if (known.empty() || is_loopback_host(known)) ps_.front()->set_address(address);
}

std::vector<std::string> AssignmentTable::missing() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < ps_.size(); ++i)
    if (!ps_[i]) names.push_back(fmt::format("ps/{}", i));
  for (size_t i = 0; i < workers_.size(); ++i)
    if (!workers_[i]) names.push_back(fmt::format("worker/{}", i));
  return names;
}

/// Address for the other tasks: one for all tasks of a host, and one that other hosts can reach if any of them
/// connected from another host. Tasks on the same host may have only its loopback address.
std::string AssignmentTable::address_of(const proto::RankHello& hello) const {
  for (const Row* row : {&ps_, &workers_}) {
    for (const std::optional<proto::RankHello>& other : *row)
      if (other->host_id() == hello.host_id() && !is_loopback_host(other->address())) return other->address();
  }
  return hello.address();
}

std::vector<proto::RankHello> AssignmentTable::hellos() const {
  std::vector<proto::RankHello> all;
  for (const Row* row : {&ps_, &workers_})
    for (const std::optional<proto::RankHello>& hello : *row) all.push_back(*hello);
  return all;
}

proto::RankAssignment AssignmentTable::assignment_of(const TaskId& task) const {
  const bool is_ps = task.job == "ps";
  const proto::RankHello& ours = *(is_ps ? ps_ : workers_).at(task.index);
  proto::RankAssignment assignment;
  assignment.set_job(task.job);
  assignment.set_index(task.index);
  bool before_us = true;
  for (const Row* row : {&ps_, &workers_}) {
    for (const std::optional<proto::RankHello>& other : *row) {
      (row == &ps_ ? assignment.add_ps_hosts() : assignment.add_worker_hosts())->assign(address_of(*other));
      if (&*other == &ours) before_us = false;
      if (other->host_id() != ours.host_id()) continue;
      if (before_us) assignment.set_place_on_host(assignment.place_on_host() + 1);
      // Different sets on one host show that the launcher has divided its cpus.
      if (other->cpus() != ours.cpus()) assignment.set_own_cpus(true);
    }
  }
  return assignment;
}

}  // namespace gradrail::launch
