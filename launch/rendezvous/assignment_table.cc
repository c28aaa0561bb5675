#include "launch/rendezvous/assignment_table.h"

#include "base/net_address.h"
#include "base/version.h"
#include "fmt/format.h"
#include "topology/pin.h"
#include "transport/registry.h"

namespace gradrail::launch {

proto::RankHello hello_of(const std::string& job, uint32_t rank, uint32_t size, uint32_t ps_count) {
  proto::RankHello hello;
  hello.set_version(build_version());
  hello.set_job(job);
  hello.set_rank(rank);
  hello.set_size(size);
  hello.set_ps_count(ps_count);
  hello.set_host_id(transport::host_id());
  hello.set_cpus(topology::usable_cpus().to_string());
  return hello;
}

absl::Status AssignmentTable::take(const proto::RankHello& hello) {
  if (hello.rank() >= ranks_.size())
    return absl::ResourceExhaustedError(fmt::format("there are {} tasks, and no more", ranks_.size()));
  std::optional<proto::RankHello>& row = ranks_[hello.rank()];
  if (row) return absl::AlreadyExistsError(fmt::format("there is another rank {}", hello.rank()));
  row = hello;
  return absl::OkStatus();
}

void AssignmentTable::set_first_address(const std::string& address) {
  const std::string& known = ranks_.front()->address();
  if (known.empty() || is_loopback_host(known)) ranks_.front()->set_address(address);
}

std::string AssignmentTable::name_of(uint32_t rank) const {
  return rank < ps_count_ ? fmt::format("ps/{}", rank) : fmt::format("worker/{}", rank - ps_count_);
}

std::vector<std::string> AssignmentTable::missing() const {
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (!ranks_[rank]) names.push_back(name_of(rank));
  return names;
}

/// Address for the other tasks: one for all tasks of a host, and one that other hosts can reach if any of them
/// connected from another host. Tasks on the same host may have only its loopback address.
std::string AssignmentTable::address_of(const proto::RankHello& hello) const {
  for (const std::optional<proto::RankHello>& other : ranks_) {
    if (other->host_id() == hello.host_id() && !is_loopback_host(other->address())) return other->address();
  }
  return hello.address();
}

std::vector<proto::RankHello> AssignmentTable::hellos() const {
  std::vector<proto::RankHello> all;
  for (const std::optional<proto::RankHello>& hello : ranks_) all.push_back(*hello);
  return all;
}

proto::RankAssignment AssignmentTable::assignment_of(uint32_t rank) const {
  const proto::RankHello& ours = *ranks_.at(rank);
  proto::RankAssignment assignment;
  for (uint32_t other = 0; other < ranks_.size(); ++other) {
    const proto::RankHello& hello = *ranks_[other];
    (other < ps_count_ ? assignment.add_ps_hosts() : assignment.add_worker_hosts())->assign(address_of(hello));
    if (hello.host_id() != ours.host_id()) continue;
    if (other < rank) assignment.set_place_on_host(assignment.place_on_host() + 1);
    // Different sets on one host show that the launcher has divided its cpus.
    if (hello.cpus() != ours.cpus()) assignment.set_own_cpus(true);
  }
  return assignment;
}

}  // namespace gradrail::launch
