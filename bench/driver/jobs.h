#pragma once

#include "nlohmann/json_fwd.hpp"

namespace gradrail::bench {

/// A job that `gradrail bench job` does in a process of its own, for Subprocess::start(): {"do": its name, …}. A fresh
/// process does not inherit the threads of gRPC, which a fork would break.
nlohmann::json run_job(const nlohmann::json& job);

/// Reads the job from standard input and writes the result to this descriptor.
[[noreturn]] void run_job_of_parent(int output);

}  // namespace gradrail::bench
