#pragma once

#include <sys/types.h>

#include <optional>
#include <string_view>

namespace gradrail::bench {

/// Use of a process by all its threads of one name since their start, from /proc.
struct ThreadCost {
  double cpu_us = 0.0;       ///< time on a core, system calls included
  double switches = 0.0;     ///< context switches, voluntary and involuntary
  double resident_mb = 0.0;  ///< memory of the whole process in 10^6 bytes, with mapped memory of other processes
};

/// Nothing: no such process or thread on this host.
std::optional<ThreadCost> thread_cost(pid_t process, std::string_view thread_name);

}  // namespace gradrail::bench
