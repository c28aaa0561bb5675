#pragma once

namespace gradrail::bench {

/// The command `gradrail bench job` reads a job of Subprocess::start() from standard input, {"do": its name, …}, and
/// writes the result to this descriptor. A fresh process has no threads of gRPC, which a fork would break.
[[noreturn]] void run_job_of_parent(int output);

}  // namespace gradrail::bench
