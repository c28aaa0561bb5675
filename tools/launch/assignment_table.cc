#include "tools/launch/assignment_table.h"

#include <algorithm>

#include "base/version.h"
#include "fmt/format.h"
#include "topology/pin.h"
#include "transport/registry.h"

namespace gradrail::tools {
namespace {

using nlohmann::json;
using Role = ps::Launch::Role;

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

/// Reads a message; what lacks a field or has another type in it throws, which is this library's way to say it.
template <typename T, typename F>
std::optional<T> read(const json& message, F fields) {
  try {
    T value;
    fields(message, value);
    return value;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

RankHello hello_of(const RendezvousRequest& request) {
  const ps::Launch& launch = request.launch;
  return {.version = build_version(),
          .job = launch.job,
          .role = launch.role,
          .rank = launch.rank,
          .size = launch.size,
          .ps_count = request.ps_count,
          .host_id = transport::host_id(),
          .address = request.bind_host,
          .cpus = topology::usable_cpus().to_string()};
}

json to_json(const RankHello& hello) {
  json message{{"gradrail train", hello.version},
               {"job", hello.job},
               {"role", static_cast<int>(hello.role)},
               {"size", hello.size},
               {"ps", hello.ps_count},
               {"host", hello.host_id},
               {"address", hello.address},
               {"cpus", hello.cpus}};
  if (hello.rank) message["rank"] = *hello.rank;
  return message;
}

std::optional<RankHello> hello_from(const json& message) {
  return read<RankHello>(message, [](const json& from, RankHello& hello) {
    from.at("gradrail train").get_to(hello.version);
    from.at("job").get_to(hello.job);
    // A number from the network must not become a value that the enumeration lacks.
    hello.role = static_cast<Role>(std::clamp(from.at("role").get<int>(), 0, static_cast<int>(Role::worker)));
    from.at("size").get_to(hello.size);
    from.at("ps").get_to(hello.ps_count);
    from.at("host").get_to(hello.host_id);
    from.at("address").get_to(hello.address);
    from.at("cpus").get_to(hello.cpus);
    if (from.contains("rank")) hello.rank = from.at("rank").get<uint32_t>();
  });
}

json to_json(const RankAssignment& assignment) {
  return {{"job", assignment.task.job},         {"index", assignment.task.index},  {"ps", assignment.ps_hosts},
          {"workers", assignment.worker_hosts}, {"own cpus", assignment.own_cpus}, {"place", assignment.place_on_host}};
}

std::optional<RankAssignment> assignment_from(const json& message) {
  std::optional<RankAssignment> assignment = read<RankAssignment>(message, [](const json& from, RankAssignment& to) {
    from.at("job").get_to(to.task.job);
    from.at("index").get_to(to.task.index);
    from.at("ps").get_to(to.ps_hosts);
    from.at("workers").get_to(to.worker_hosts);
    from.at("own cpus").get_to(to.own_cpus);
    from.at("place").get_to(to.place_on_host);
  });
  // The index selects an element of these lists later: a message with a wrong one is none.
  const bool good =
      assignment &&
      assignment->task.index < (assignment->task.job == "ps" ? assignment->ps_hosts : assignment->worker_hosts).size();
  return good ? assignment : std::nullopt;
}

std::string name_of(const RankHello& hello) {
  if (hello.role == Role::by_rank) return fmt::format("rank {}", hello.rank.value_or(0));
  const std::string job = hello.role == Role::ps ? "ps" : "worker";
  return hello.rank ? fmt::format("{}/{}", job, *hello.rank) : fmt::format("a {}", job);
}

absl::StatusOr<ps::TaskId> AssignmentTable::take(const RankHello& hello) {
  const bool is_ps = hello.role == Role::by_rank ? hello.rank < ps_.size() : hello.role == Role::ps;
  Row& row = is_ps ? ps_ : workers_;
  size_t index = hello.rank.value_or(0);
  // The first ranks are ps, the others workers.
  if (hello.role == Role::by_rank && !is_ps) index -= ps_.size();
  if (!hello.rank) index = std::find(row.begin(), row.end(), std::nullopt) - row.begin();
  if (index >= row.size())
    return absl::ResourceExhaustedError(
        fmt::format("there are {} {} tasks, and no more", row.size(), is_ps ? "ps" : "worker"));
  if (row[index]) return absl::AlreadyExistsError(fmt::format("there is another {}", name_of(hello)));
  row[index] = hello;
  return ps::TaskId{is_ps ? "ps" : "worker", static_cast<uint32_t>(index)};
}

void AssignmentTable::set_first_ps_address(const std::string& address) {
  std::string& known = ps_.front()->address;
  if (known.empty() || is_loopback(known)) known = address;
}

std::vector<std::string> AssignmentTable::missing() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < ps_.size(); ++i)
    if (!ps_[i]) names.push_back(fmt::format("ps/{}", i));
  for (size_t i = 0; i < workers_.size(); ++i)
    if (!workers_[i]) names.push_back(fmt::format("worker/{}", i));
  return names;
}

/// One for all tasks of a host, and one that other hosts can reach where any of them came from afar. Tasks met on the
/// same host may know only its loopback address.
std::string AssignmentTable::address_of(const RankHello& hello) const {
  for (const Row* row : {&ps_, &workers_}) {
    for (const std::optional<RankHello>& other : *row)
      if (other->host_id == hello.host_id && !is_loopback(other->address)) return other->address;
  }
  return hello.address;
}

RankAssignment AssignmentTable::assignment_of(const ps::TaskId& task) const {
  const bool is_ps = task.job == "ps";
  const RankHello& ours = *(is_ps ? ps_ : workers_).at(task.index);
  RankAssignment assignment{.task = task, .ps_hosts = {}, .worker_hosts = {}};
  bool before_us = true;
  for (const Row* row : {&ps_, &workers_}) {
    for (const std::optional<RankHello>& other : *row) {
      (row == &ps_ ? assignment.ps_hosts : assignment.worker_hosts).push_back(address_of(*other));
      if (&*other == &ours) before_us = false;
      if (other->host_id != ours.host_id) continue;
      if (before_us) ++assignment.place_on_host;
      // Different sets on one host show that the launcher has divided its cpus.
      if (other->cpus != ours.cpus) assignment.own_cpus = true;
    }
  }
  return assignment;
}

}  // namespace gradrail::tools
