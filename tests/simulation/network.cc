#include "tests/simulation/network.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "fmt/format.h"

namespace gradrail::simulation {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kClientKeepalive = 6'000 * kMs;   // of control_link.cc, twice its interval
constexpr int64_t kServerKeepalive = 10'000 * kMs;  // of server.cc
constexpr int64_t kPathTimeout = 10'000 * kMs;      // the default of the data plane

Scheduler& scheduler() { return Scheduler::instance(); }
TimePoint time_point(int64_t ns) { return TimePoint(std::chrono::nanoseconds(ns)); }

template <typename T>
std::vector<std::shared_ptr<T>> present(std::vector<std::weak_ptr<T>>& all) {
  std::vector<std::shared_ptr<T>> found;
  std::erase_if(all, [](const std::weak_ptr<T>& one) { return one.expired(); });
  for (const auto& one : all) found.push_back(one.lock());
  return found;
}

}  // namespace

void Net::add_process(ProcessId process, uint32_t task) {
  if (tasks_.size() <= process) tasks_.resize(process + 1);
  tasks_[process] = task;
}

uint64_t Net::place() { return scheduler().process(); }

int64_t Net::latency() {
  int64_t ns = static_cast<int64_t>(20'000 + random_.below(180'000));
  if (random_.below(1000) < delay_per_mille_) {
    ++delayed_;
    ns += static_cast<int64_t>(random_.below(static_cast<uint64_t>(longest_delay_) + 1));
  }
  return ns;
}

void Net::set_delays(uint32_t per_mille, int64_t longest_ns) {
  delay_per_mille_ = per_mille;
  longest_delay_ = longest_ns;
}

absl::Status Net::connect(const std::shared_ptr<transport::loopback::Link>& link, TimePoint deadline) {
  const auto from = static_cast<ProcessId>(link->ends[0].place), to = static_cast<ProcessId>(link->ends[1].place);
  scheduler().sleep_until(scheduler().now() + 2 * latency());
  if (is_cut(tasks_[from], tasks_[to]) || is_cut(tasks_[to], tasks_[from]) || is_dark(tasks_[to])) {
    const auto at = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
    scheduler().sleep_until(std::max<int64_t>(at, scheduler().now()));
    return absl::DeadlineExceededError("no answer");
  }
  if (scheduler().is_killed(to)) return absl::UnavailableError("Connection refused");
  links_.push_back(link);
  return absl::OkStatus();
}

TimePoint Net::arrival(const transport::loopback::End&, const transport::loopback::End& to) {
  const int64_t at = scheduler().now() + latency();
  scheduler().at(at, [bell = to.doorbell] { bell->ring(); });
  return time_point(at);
}

bool Net::passes(const transport::loopback::End& from, const transport::loopback::End& to) {
  return !is_cut(tasks_[from.place], tasks_[to.place]);
}

void Net::send(ProcessId from, ProcessId to, int64_t& last_arrival, std::function<void()> arrived) {
  auto message = std::make_shared<Held>(Held{from, to, std::move(arrived)});
  last_arrival = std::max(last_arrival + 1, scheduler().now() + latency());
  scheduler().at(last_arrival, [this, message] { deliver(std::move(*message)); });
}

void Net::send_to_client(Connection& connection, std::function<void()> arrived) {
  send(connection.server, connection.client, connection.client_arrival, std::move(arrived));
}

void Net::send_to_server(Connection& connection, std::function<void()> arrived) {
  send(connection.client, connection.server, connection.server_arrival, std::move(arrived));
}

void Net::deliver(Held message) {
  if (scheduler().is_killed(message.to)) return;
  if (is_cut(tasks_[message.from], tasks_[message.to])) {
    held_.push_back(std::move(message));
    return;
  }
  message.arrived();
}

std::shared_ptr<Connection> Net::connect(ProcessId client, ProcessId server) {
  auto connection = std::make_shared<Connection>(Connection{.client = client, .server = server});
  connections_.push_back(connection);
  return connection;
}

void Net::lose(Connection& connection, bool client, bool server, const std::string& cause) {
  if (connection.cause.empty()) connection.cause = cause;
  if (client && !std::exchange(connection.client_lost, true)) scheduler().wake(&connection, true);
  if (server && !std::exchange(connection.server_lost, true) && connection.on_server_lost &&
      !scheduler().is_killed(connection.server)) {
    scheduler().spawn(connection.server, connection.on_server_lost);
  }
}

void Net::lose_links(const std::function<bool(uint64_t, uint64_t)>& concerns, const std::string& cause,
                     TimePoint arrives) {
  for (const auto& link : present(links_)) {
    if (!concerns(link->ends[0].place, link->ends[1].place)) continue;
    const MutexLock lock(link->mutex);
    if (!link->lost.ok()) continue;
    link->lost = absl::UnavailableError(cause);
    link->loss_arrives = arrives;
    for (const transport::loopback::End& end : link->ends) {
      const auto at = std::chrono::duration_cast<std::chrono::nanoseconds>(arrives.time_since_epoch()).count();
      scheduler().at(at, [bell = end.doorbell] { bell->ring(); });
    }
  }
}

void Net::on_kill(ProcessId process, bool with_host) {
  const auto is_its = [process](uint64_t a, uint64_t b) { return a == process || b == process; };
  if (with_host) {
    scheduler().at(scheduler().now() + kPathTimeout,
                   [this, is_its] { lose_links(is_its, "no acknowledgement for 10 s", TimePoint()); });
  } else {
    lose_links(is_its, "connection reset by peer", time_point(scheduler().now() + latency()));
  }
  for (const auto& connection : present(connections_)) {
    if (connection->client != process && connection->server != process) continue;
    const auto end = [this, connection, with_host] {
      lose(*connection, true, true, with_host ? "keepalive watchdog timeout" : "Socket closed");
    };
    if (with_host) {
      const bool is_client = connection->server == process;
      scheduler().at(scheduler().now() + (is_client ? kClientKeepalive : kServerKeepalive), end);
    } else {
      connection->client == process ? send_to_server(*connection, end) : send_to_client(*connection, end);
    }
  }
}

void Net::set_cut(uint32_t from, uint32_t to, bool cut) {
  if (!cut) {
    cuts_.erase({from, to});
    std::vector<Held> all = std::exchange(held_, {});
    // One time for all: a connection keeps the order.
    const int64_t at = scheduler().now() + latency();
    for (Held& message : all) {
      scheduler().at(at, [this, held = std::make_shared<Held>(std::move(message))] { deliver(std::move(*held)); });
    }
    for (const auto& link : present(links_)) {
      for (const transport::loopback::End& end : link->ends) end.doorbell->ring();
    }
    return;
  }
  const uint64_t number = next_cut_++;
  cuts_[{from, to}] = number;
  watch_cut(from, to, number);
}

/// A cut that lasts ends the connections across it.
void Net::watch_cut(uint32_t from, uint32_t to, uint64_t number) {
  const auto lasts = [this, from, to, number] {
    const auto found = cuts_.find({from, to});
    return found != cuts_.end() && found->second == number;
  };
  const auto crosses = [this, from, to](uint64_t a, uint64_t b) {
    const uint32_t x = tasks_[a], y = tasks_[b];
    return (x == from && y == to) || (x == to && y == from);
  };
  const auto end = [this, crosses, lasts](bool client, bool server) {
    if (!lasts()) return;
    for (const auto& connection : present(connections_)) {
      if (crosses(connection->client, connection->server))
        lose(*connection, client, server, "keepalive watchdog timeout");
    }
  };
  scheduler().at(scheduler().now() + kClientKeepalive, [end] { end(true, false); });
  scheduler().at(scheduler().now() + kServerKeepalive, [end] { end(false, true); });
  scheduler().at(scheduler().now() + kPathTimeout, [this, crosses, lasts] {
    if (lasts()) lose_links(crosses, "no acknowledgement for 10 s", TimePoint());
  });
}

void Net::set_dark(uint32_t task, bool dark) {
  if (dark_.size() <= task) dark_.resize(task + 1);
  dark_[task] = dark;
}

void Net::heal() {
  while (!cuts_.empty()) {
    const auto [from, to] = cuts_.begin()->first;
    set_cut(from, to, false);
  }
}

bool Net::cut_link() {
  auto links = present(links_);
  std::erase_if(links, [](const auto& link) {
    const MutexLock lock(link->mutex);
    return !link->lost.ok();
  });
  if (links.empty()) return false;
  const auto& link = links[random_.below(links.size())];
  scheduler().trace(fmt::format("fault: data connection of {} to {} is cut", tasks_[link->ends[0].place],
                                tasks_[link->ends[1].place]));
  const MutexLock lock(link->mutex);
  link->lost = absl::UnavailableError("connection reset");
  for (const transport::loopback::End& end : link->ends) end.doorbell->ring();
  return true;
}

bool Net::cut_connection() {
  auto connections = present(connections_);
  std::erase_if(connections, [](const auto& c) { return c->client_lost || c->server_lost; });
  if (connections.empty()) return false;
  const auto& connection = connections[random_.below(connections.size())];
  scheduler().trace(fmt::format("fault: control connection of {} to {} is cut", tasks_[connection->client],
                                tasks_[connection->server]));
  lose(*connection, true, true, "Socket closed");
  return true;
}

}  // namespace gradrail::simulation
