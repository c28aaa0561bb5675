#include "tools/doctor/checks/tasks_check.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/net_address.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "fmt/format.h"
#include "ps/protocol/cluster_spec.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kTasksCheck = "tasks";

/// A lost SYN is sent again after 1 s and 3 s: by then a running host has answered.
constexpr Duration kConnectTime = std::chrono::seconds(4);
/// A lost packet is sent again after 0.2, 0.6 and 1.4 s.
constexpr Duration kLargeTime = std::chrono::seconds(3);
/// A resolver that does not answer takes 10 s for each name.
constexpr Duration kConnectDeadline = std::chrono::seconds(60);
/// ARP gives up on a host that is off after 3 s; an answer before that came from another host.
constexpr Duration kQuick = std::chrono::seconds(2);

/// A connection to one address of a server.
struct Attempt {
  size_t server_index = 0;
  FileDescriptor socket;
  std::optional<int> error;  ///< 0: connected; none: no answer yet
  Duration took{};
};

struct Server {
  std::string unresolved;  ///< why its name has no address
  bool connected = false;  ///< over one of its addresses
};

Attempt begin(const NetAddress& address, size_t server_index) {
  // Nonblocking: a host that drops packets must not delay the attempts to the others.
  Attempt attempt{.server_index = server_index,
                  .socket = FileDescriptor(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0))};
  if (!attempt.socket) {
    attempt.error = errno;
    return attempt;
  }
  const bool connected = connect(attempt.socket.get(), address.get(), address.bytes) == 0;
  if (connected || errno != EINPROGRESS) attempt.error = connected ? 0 : errno;
  return attempt;
}

absl::StatusOr<std::vector<NetAddress>> addresses_of(const std::string& server, const Resolver& resolver) {
  GRADRAIL_ASSIGN_OR_RETURN(const ps::HostPort address, ps::parse_host_port(server));
  return resolver(address.host, address.port);
}

/// Collects answers until each server is connected or all its addresses have answered, or the time is over.
void collect(std::vector<Attempt>& attempts, std::vector<Server>& servers) {
  const TimePoint start = Clock::now();
  while (Clock::now() < start + kConnectTime) {
    std::vector<pollfd> waiting;
    for (const Attempt& attempt : attempts) {
      if (attempt.error == 0) servers[attempt.server_index].connected = true;
    }
    for (const Attempt& attempt : attempts)
      if (attempt.socket && !attempt.error && !servers[attempt.server_index].connected)
        waiting.push_back({.fd = attempt.socket.get(), .events = POLLOUT, .revents = 0});
    if (waiting.empty()) return;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(start + kConnectTime - Clock::now());
    // Plus one, since the cast rounds down: a wait of 0 ms would spin until the deadline.
    if (poll(waiting.data(), waiting.size(), static_cast<int>(left.count()) + 1) <= 0) continue;
    for (const pollfd& ready : waiting) {
      if (ready.revents == 0) continue;
      for (Attempt& attempt : attempts) {
        // A socket number identifies its attempt: all sockets stay open until the end.
        if (attempt.socket.get() != ready.fd) continue;
        int error = 0;
        socklen_t bytes = sizeof(error);
        getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
        attempt.error = error;
        attempt.took = Clock::now() - start;
      }
    }
  }
}

/// The attempt with the most information about a server has the lowest rank. A host with no route over IPv6 is common;
/// its result has no meaning for a server that IPv4 reaches.
int rank(const Attempt& attempt) {
  switch (attempt.error.value_or(ETIMEDOUT)) {
    case 0:
      return 0;
    case EMSGSIZE:
    case ECONNREFUSED:
      return 1;
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EACCES:
    case EPERM:
      return 2;
    default:
      return 3;
  }
}

/// A connection over which large packets do not pass has the error EMSGSIZE.
void try_large_packets(std::vector<Attempt>& attempts) {
  std::vector<Attempt*> answer;  // a process with a full backlog is connected, and acknowledges nothing
  for (const Attempt& attempt : attempts)
    if (attempt.error == 0) send_small_part(attempt.socket.get());
  TimePoint deadline = Clock::now() + kLargeTime;
  for (Attempt& attempt : attempts)
    if (attempt.error == 0 && wait_acknowledged(attempt.socket.get(), deadline) == 0) answer.push_back(&attempt);
  for (const Attempt* attempt : answer) send_large_part(attempt->socket.get());
  deadline = Clock::now() + kLargeTime;
  for (Attempt* attempt : answer)
    if (wait_acknowledged(attempt->socket.get(), deadline) == ETIMEDOUT) attempt->error = EMSGSIZE;
}

/// One line for each server: "errno quick" or "- reason".
absl::StatusOr<std::string> try_all(const std::vector<std::string>& names, const Resolver& resolver) {
  std::vector<Server> servers(names.size());
  std::vector<Attempt> attempts;
  for (size_t i = 0; i < names.size(); ++i) {
    const absl::StatusOr<std::vector<NetAddress>> found = addresses_of(names[i], resolver);
    if (!found.ok()) {
      servers[i].unresolved = message_of(found.status());
      continue;
    }
    for (const NetAddress& address : *found) attempts.push_back(begin(address, i));
  }
  collect(attempts, servers);
  try_large_packets(attempts);
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (!servers[i].unresolved.empty()) {
      text += fmt::format("- {}\n", servers[i].unresolved);
      continue;
    }
    const Attempt* best = nullptr;
    for (const Attempt& attempt : attempts) {
      if (attempt.server_index == i && (best == nullptr || rank(attempt) < rank(*best))) best = &attempt;
    }
    // No answer until the deadline is reported as the kernel would do it after two minutes.
    text += fmt::format("{} {}\n", best->error.value_or(ETIMEDOUT), best->took < kQuick ? 1 : 0);
  }
  return text;
}

Finding parse(const std::string& server, const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  if (words.size() == 2 && number_of(words[0]))
    return judge_connect(server, static_cast<int>(*number_of(words[0])), words[1] == "1");
  return {State::broken, fmt::format("{}: {}", server, printable(line.substr(std::min<size_t>(2, line.size())))),
          "the name stands for no address here",
          fmt::format("getent hosts {}; /etc/hosts or the DNS", server.substr(0, server.rfind(':')))};
}

}  // namespace

Finding judge_connect(const std::string& server, int error, bool quick) {
  const std::string port = server.substr(server.rfind(':') + 1);
  const std::string open_port = fmt::format(
      "on that host: sudo firewall-cmd --add-port={0}/tcp, or sudo ufw allow {0}/tcp; cloud: its security group", port);
  const std::string what = fmt::format("{}: {}", server, error == 0 ? "connected" : std::strerror(error));
  switch (error) {
    case 0:
      return {State::ok, what};
    case ECONNREFUSED:
      return {State::missing, what + ": the host is there, no process listens at the port",
              "the task is not running there yet, or listens at another address",
              fmt::format("start it: gradrail train --job_name ps ...; on that host: ss -ltn | grep {}", port)};
    case EMSGSIZE:
      return {State::broken, fmt::format("{}: connected, but {}", server, kLargePacketsLost),
              "workers join, and their data connections fail",
              fmt::format("ping -M do -s 1472 {}; permit ICMP on the way, or lower the MTU of both hosts",
                          server.substr(0, server.rfind(':')))};
    case ETIMEDOUT:
      return {State::broken, what + ": no answer at all, as when a firewall drops packets, or the host is off",
              "workers wait for this task in vain", "ping it; " + open_port};
    case EHOSTUNREACH:
      // A router or firewall answers with ICMP in one round trip. This host gives the same error after ARP failed.
      if (quick) {
        return {State::broken, what + ": refused at once by a device on the way, as a firewall that rejects does",
                "workers wait for this task in vain", open_port};
      }
      return {State::broken, what + ": no host in this network has the address",
              "the host is off, or the address is wrong", "ping it; ip neigh; the address in the cluster file"};
    case ENETUNREACH:
      return {State::broken, what + ": this host has no route there", "workers on this host cannot reach the task",
              "ip route get ADDRESS; sudo ip route add NETWORK via ROUTER"};
    // The packet filter of this host makes connect() fail with these two.
    case EACCES:
    case EPERM:
      return {State::broken, what + ": a firewall on this host forbids it",
              "workers on this host cannot reach the task",
              "sudo nft list ruleset | grep -B 2 -A 2 -E 'drop|reject' here"};
    default:
      return {State::broken, what, "workers on this host cannot reach the task", open_port};
  }
}

Check check_tasks(const std::vector<std::string>& servers, const Resolver& resolver) {
  if (servers.empty()) return not_applicable(topic::kNetwork, kTasksCheck, "no --cluster and no --ps_hosts");
  const absl::StatusOr<std::string> text =
      // A process of its own: getaddrinfo() has no deadline.
      run_in_subprocess([&] { return try_all(servers, resolver); }, {.timeout = kConnectDeadline});
  if (!text.ok()) {
    return conclude(
        topic::kNetwork, kTasksCheck,
        {{State::unknown, std::string(message_of(text.status())), "whether the tasks can be reached is not known",
          "getent hosts NAME for each name of the cluster"}});
  }
  const std::vector<std::string> lines = lines_of(*text);
  std::vector<Finding> findings;
  for (size_t i = 0; i < servers.size() && i < lines.size(); ++i) findings.push_back(parse(servers[i], lines[i]));
  return conclude(topic::kNetwork, kTasksCheck, std::move(findings));
}

}  // namespace gradrail::tools::doctor
