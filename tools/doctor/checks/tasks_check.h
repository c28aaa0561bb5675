#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/net_address.h"
#include "tools/doctor/check.h"

namespace gradrail::tools::doctor {

/// The type of gradrail::resolve(), so that a test can give a name several addresses.
using Resolver = std::function<absl::StatusOr<std::vector<NetAddress>>(const std::string& host, uint16_t port)>;

/// Tries the control port of each parameter server ("host:port") over TCP, at all addresses of the name and all at
/// once: workers listen nowhere. One address that connects is enough. A refusal, a firewall's answer and silence have
/// different results.
Check check_tasks(const std::vector<std::string>& servers, const Resolver& resolver = resolve);

/// The result of one attempt, as errno; 0: connected; EMSGSIZE: the same, but large packets are lost. `quick`: the
/// answer came at once. Pure.
Finding judge_connect(const std::string& server, int error, bool quick);

}  // namespace gradrail::tools::doctor
