#pragma once

#include <string>
#include <vector>

#include "tools/doctor/check.h"

namespace gradrail::tools::doctor {

/// Tries the control port of each parameter server ("host:port") over TCP, all at once: workers listen nowhere.
/// A refusal, a firewall's answer and silence have different results.
Check check_tasks(const std::vector<std::string>& servers);

/// The result of one attempt, as errno; 0: connected. `quick`: the answer came at once. Pure.
Finding judge_connect(const std::string& server, int error, bool quick);

}  // namespace gradrail::tools::doctor
