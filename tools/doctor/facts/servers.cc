// Connections to the parameter servers of a cluster.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/file_descriptor.h"
#include "base/net_address.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "fmt/format.h"
#include "gradrail/clock.h"
#include "gradrail/cluster.h"
#include "tools/doctor/facts/read.h"

namespace gradrail::tools::doctor {
namespace {

/// Time limit of a connection. A lost SYN is sent again after 1 s and 3 s: a running host has answered within this
/// limit.
constexpr Duration kConnectTime = std::chrono::seconds(4);
/// A lost packet is sent again after 0.2, 0.6 and 1.4 s.
constexpr Duration kLargeTime = std::chrono::seconds(3);
/// A resolver that does not answer takes 10 s for each name.
constexpr Duration kConnectDeadline = std::chrono::seconds(60);
/// Limit of a quick answer. ARP reports a host that is off after 3 s; an earlier answer is that of another host.
constexpr Duration kQuick = std::chrono::seconds(2);

/// A connection to one address of a server.
struct Attempt {
  size_t server_index = 0;
  FileDescriptor socket;
  std::optional<int> error;  ///< 0: connected; none: no answer yet
  Duration took{};
};

struct Server {
  std::string unresolved;  ///< reason why its name has no address
  bool connected = false;  ///< connected over one of its addresses
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
  GRADRAIL_ASSIGN_OR_RETURN(const HostPort address, parse_host_port(server));
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

/// Returns a line for each server: "errno quick" or "- reason".
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

Facts named(const std::string& server) {
  Facts facts;
  const size_t colon = server.rfind(':');
  facts.set("name", server);
  facts.set("host", server.substr(0, colon));
  facts.set("port", server.substr(colon + 1));
  return facts;
}

}  // namespace

Facts server_facts(const std::string& server, int error, bool quick) {
  Facts facts = named(server);
  facts.set("errno", static_cast<uint64_t>(error));
  facts.set("error", std::strerror(error));
  facts.set_if("quick", quick);
  return facts;
}

void read_servers(const std::vector<std::string>& servers, Machine& machine, const Resolver& resolver) {
  machine.host.set_if("servers", !servers.empty());
  if (servers.empty()) return;
  const absl::StatusOr<std::string> text =
      // A separate process resolves the names: getaddrinfo() has no deadline.
      run_in_subprocess([&] { return try_all(servers, resolver); }, {.timeout = kConnectDeadline});
  machine.host.set("servers_error", std::string(message_of(text.status())));
  if (!text.ok()) return;
  const std::vector<std::string> lines = lines_of(*text);
  for (size_t i = 0; i < servers.size() && i < lines.size(); ++i) {
    const std::vector<std::string> words = words_of(lines[i]);
    if (words.size() == 2 && number_of(words[0])) {
      machine.servers.push_back(server_facts(servers[i], static_cast<int>(*number_of(words[0])), words[1] == "1"));
    } else {
      machine.servers.push_back(named(servers[i]));
      machine.servers.back().set("unresolved", printable(lines[i].substr(std::min<size_t>(2, lines[i].size()))));
    }
  }
}

}  // namespace gradrail::tools::doctor
