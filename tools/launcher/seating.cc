#include "tools/launcher/seating.h"

#include <algorithm>

#include "bench/cpus.h"
#include "bench/versions.h"
#include "fmt/format.h"
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

Hello hello_of(const Attendance& attendance) {
  const ps::Launch& launch = attendance.launch;
  return {.version = bench::version_text(),
          .job = launch.job,
          .role = launch.role,
          .rank = launch.rank,
          .size = launch.size,
          .ps_count = attendance.ps_count,
          .host_id = transport::host_id(),
          .address = attendance.bind_host,
          .cpus = bench::usable_cpus().to_string()};
}

json to_json(const Hello& hello) {
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

std::optional<Hello> hello_from(const json& message) {
  return read<Hello>(message, [](const json& from, Hello& hello) {
    from.at("gradrail train").get_to(hello.version);
    from.at("job").get_to(hello.job);
    hello.role = static_cast<Role>(std::clamp(from.at("role").get<int>(), 0, static_cast<int>(Role::worker)));
    from.at("size").get_to(hello.size);
    from.at("ps").get_to(hello.ps_count);
    from.at("host").get_to(hello.host_id);
    from.at("address").get_to(hello.address);
    from.at("cpus").get_to(hello.cpus);
    if (from.contains("rank")) hello.rank = from.at("rank").get<uint32_t>();
  });
}

json to_json(const Seat& seat) {
  return {{"job", seat.task.job},         {"index", seat.task.index},  {"ps", seat.ps_hosts},
          {"workers", seat.worker_hosts}, {"own cpus", seat.own_cpus}, {"place", seat.place_on_host}};
}

std::optional<Seat> seat_from(const json& message) {
  std::optional<Seat> seat = read<Seat>(message, [](const json& from, Seat& to) {
    from.at("job").get_to(to.task.job);
    from.at("index").get_to(to.task.index);
    from.at("ps").get_to(to.ps_hosts);
    from.at("workers").get_to(to.worker_hosts);
    from.at("own cpus").get_to(to.own_cpus);
    from.at("place").get_to(to.place_on_host);
  });
  const bool good = seat && seat->task.index < (seat->task.job == "ps" ? seat->ps_hosts : seat->worker_hosts).size();
  return good ? seat : std::nullopt;
}

std::string name_of(const Hello& hello) {
  if (hello.role == Role::by_rank) return fmt::format("rank {}", hello.rank.value_or(0));
  const std::string job = hello.role == Role::ps ? "ps" : "worker";
  return hello.rank ? fmt::format("{}/{}", job, *hello.rank) : fmt::format("a {}", job);
}

absl::StatusOr<ps::TaskId> Seating::take(const Hello& hello) {
  const bool is_ps = hello.role == Role::by_rank ? hello.rank < ps_.size() : hello.role == Role::ps;
  Row& row = is_ps ? ps_ : workers_;
  size_t index = hello.rank.value_or(0);
  if (hello.role == Role::by_rank && !is_ps) index -= ps_.size();
  if (!hello.rank) index = std::find(row.begin(), row.end(), std::nullopt) - row.begin();
  if (index >= row.size())
    return absl::ResourceExhaustedError(
        fmt::format("there are {} {} tasks, and no more", row.size(), is_ps ? "ps" : "worker"));
  if (row[index]) return absl::AlreadyExistsError(fmt::format("there is another {}", name_of(hello)));
  row[index] = hello;
  return ps::TaskId{is_ps ? "ps" : "worker", static_cast<uint32_t>(index)};
}

void Seating::first_ps_reached_at(const std::string& address) {
  std::string& known = ps_.front()->address;
  if (known.empty() || is_loopback(known)) known = address;
}

std::vector<std::string> Seating::missing() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < ps_.size(); ++i)
    if (!ps_[i]) names.push_back(fmt::format("ps/{}", i));
  for (size_t i = 0; i < workers_.size(); ++i)
    if (!workers_[i]) names.push_back(fmt::format("worker/{}", i));
  return names;
}

/// One for all tasks of a host, and one that other hosts can reach where any of them came from afar: who met on the
/// same host may know only its loopback address.
std::string Seating::address_of(const Hello& hello) const {
  for (const Row* row : {&ps_, &workers_}) {
    for (const std::optional<Hello>& other : *row)
      if (other->host_id == hello.host_id && !is_loopback(other->address)) return other->address;
  }
  return hello.address;
}

Seat Seating::seat_of(const ps::TaskId& task) const {
  const bool is_ps = task.job == "ps";
  const Hello& ours = *(is_ps ? ps_ : workers_).at(task.index);
  Seat seat{.task = task, .ps_hosts = {}, .worker_hosts = {}};
  bool before_us = true;
  for (const Row* row : {&ps_, &workers_}) {
    for (const std::optional<Hello>& other : *row) {
      (row == &ps_ ? seat.ps_hosts : seat.worker_hosts).push_back(address_of(*other));
      if (&*other == &ours) before_us = false;
      if (other->host_id != ours.host_id) continue;
      if (before_us) ++seat.place_on_host;
      if (other->cpus != ours.cpus) seat.own_cpus = true;
    }
  }
  return seat;
}

}  // namespace gradrail::tools
