// Connections to the parameter servers of a cluster.
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/net_address.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/admission/channel.h"
#include "tools/doctor/facts/read.h"

namespace gradrail::tools::doctor {
namespace {

/// Time limit of a server. A lost SYN is sent again after 1 s and 3 s, a lost packet after 0.2, 0.6 and 1.4 s.
constexpr Duration kServerTime = std::chrono::seconds(6);
/// A resolver that does not answer takes 10 s for each name.
constexpr Duration kDeadline = std::chrono::seconds(60);

/// One word for the result, then the error. The attempt is that of a worker before it joins.
std::string try_server(const std::string& server) {
  const absl::StatusOr<HostPort> address = parse_host_port(server);
  if (!address.ok()) return fmt::format("unresolved {}", message_of(address.status()));
  const absl::StatusOr<std::vector<NetAddress>> found = resolve(address->host, address->port);
  if (!found.ok()) return fmt::format("unresolved {}", message_of(found.status()));
  const absl::Status status = ps::check_packet_size(server, kServerTime);
  if (status.ok()) return "connected";
  const std::string_view error = message_of(status);
  const char* const word = error == kLargePacketsLost                                          ? "small_packets"
                           : absl::IsDeadlineExceeded(status)                                  ? "no_answer"
                           : error.find(std::strerror(ECONNREFUSED)) != std::string_view::npos ? "refused"
                                                                                               : "unreached";
  return fmt::format("{} {}", word, error);
}

/// Returns a line for each server. All are tried at the same time: a host that drops packets must not delay the others.
absl::StatusOr<std::string> try_all(const std::vector<std::string>& servers) {
  std::vector<std::string> results(servers.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < servers.size(); ++i) {
    absl::StatusOr<std::thread> thread = start_thread("doctor", [&, i] { results[i] = try_server(servers[i]); });
    if (thread.ok()) threads.push_back(*std::move(thread));
    if (!thread.ok()) results[i] = fmt::format("unreached {}", message_of(thread.status()));
  }
  for (std::thread& thread : threads) thread.join();
  std::string text;
  for (const std::string& result : results) text += clean(result) + "\n";
  return text;
}

}  // namespace

Facts server_facts(const std::string& server, const std::string& result) {
  Facts facts;
  const size_t colon = server.rfind(':'), space = result.find(' ');
  facts.set("name", server);
  facts.set("host", server.substr(0, colon));
  facts.set("port", server.substr(colon + 1));
  facts.set("result", result.substr(0, space));
  facts.set("error", space == std::string::npos ? "" : result.substr(space + 1));
  return facts;
}

void read_servers(const std::vector<std::string>& servers, Machine& machine) {
  machine.host.set_if("servers", !servers.empty());
  if (servers.empty()) return;
  // A separate process resolves the names: getaddrinfo() has no deadline.
  const absl::StatusOr<std::string> text = run_in_subprocess([&] { return try_all(servers); }, {.timeout = kDeadline});
  machine.host.set("servers_error", std::string(message_of(text.status())));
  const std::vector<std::string> lines = lines_of(text.value_or(""));
  for (size_t i = 0; i < servers.size() && i < lines.size(); ++i)
    machine.servers.push_back(server_facts(servers[i], lines[i]));
}

}  // namespace gradrail::tools::doctor
