#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "gradrail/clock.h"

namespace gradrail {

struct SubprocessLimits {
  Duration timeout;
  size_t max_output_bytes = 256 << 10;
};

/// Runs `work` in a child process and returns its result. A library or driver that crashes, prints, hangs or starts
/// threads there does not affect this process.
/// Errors   Those of `work`. UNAVAILABLE: the child ended without a result; the message has its signal or exit code.
///          DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED: the child exceeded a limit and was killed, or fork failed.
/// Threads  Only the thread of the caller may run: the child inherits the locks of other threads as they are.
absl::StatusOr<std::string> run_in_subprocess(const std::function<absl::StatusOr<std::string>()>& work,
                                              const SubprocessLimits& limits);

/// Reads until the other end of a pipe is closed.
/// Errors  DEADLINE_EXCEEDED: the message has the time from `start`, when the other end began, to the deadline.
///         RESOURCE_EXHAUSTED: more than `max_bytes`.
absl::StatusOr<std::string> read_until_closed(int fd, TimePoint start, TimePoint deadline, size_t max_bytes);

/// The status of waitpid() as text: "signal 11 (Segmentation fault)" or "exit code 1".
std::string describe_exit(int wait_status);

}  // namespace gradrail
