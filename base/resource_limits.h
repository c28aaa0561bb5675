#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail {

/// Reads a file of the system: "" if it cannot be read. Tests and `gradrail doctor` read a recorded machine.
using SystemFiles = std::function<std::string(const std::string& path)>;
std::string read_system_file(const std::string& path);

/// The folders that may hold limits of a controller for this process: its cgroup, and those above it, in both
/// hierarchies. The nearest is first. A limit applies to its cgroup and to all cgroups below it.
std::vector<std::string> cgroup_folders(const std::string& controller, const SystemFiles& files = read_system_file);

/// The rest of a resource, and the limit that decides.
struct Rest {
  uint64_t amount = 0;
  std::string text;  ///< the limit and its remedy: "memory.max of /sys/fs/cgroup/job is 419430400 bytes, and 1048576 …"
};

/// The bytes that this process and those that it starts may still use: the free memory of the host and the limits of
/// all cgroups of this process. The cache of files does not count as used. nullopt: the system has no such files.
/// `processes` of them have the bytes in equal parts: a limit of address space is one of each process.
std::optional<Rest> available_memory(uint64_t processes = 1, const SystemFiles& files = read_system_file);

/// Checks the available memory before an allocation of `bytes`. `who`: the begin of the message, "2 workers need".
/// `remedy`: its end.
/// Errors  RESOURCE_EXHAUSTED: fewer bytes are available; the message has both numbers, the limit and the remedies.
absl::Status check_available_memory(std::string_view who, double bytes, std::string_view remedy, uint64_t processes = 1,
                                    const SystemFiles& files = read_system_file);

/// The processes and threads that this process may still start: pids.max of all its cgroups, and `ulimit -u`. nullopt:
/// no limit is known.
std::optional<Rest> available_tasks(const SystemFiles& files = read_system_file);

/// The threads of a process that uses gRPC, beside its own. The pools of gRPC have one for each core.
/// Source   Measured with gRPC 1.51.
uint64_t threads_with_grpc();

/// Checks the available tasks before threads are started: gRPC neither reports nor survives a thread that the kernel
/// refuses. `who`: the begin of the message, "2 workers need".
/// Errors  RESOURCE_EXHAUSTED: fewer can be started; the message has both numbers, the limit and the remedy.
absl::Status check_available_tasks(std::string_view who, uint64_t needed, const SystemFiles& files = read_system_file);

/// The error of a call that the kernel has refused with `error`.
/// Errors  RESOURCE_EXHAUSTED: a limit or a lack; the message has the call, the limit with its value, and the remedy.
///         Others as absl::ErrnoToStatus().
absl::Status kernel_refusal(std::string_view call, int error, const SystemFiles& files = read_system_file);

/// The limit with its value and the remedy, for an errno that means a lack; "" for another one.
std::string limit_text(int error, const SystemFiles& files = read_system_file);

/// std::thread that returns an error where its constructor throws one.
/// Errors  RESOURCE_EXHAUSTED: as kernel_refusal().
absl::StatusOr<std::thread> start_thread(std::string_view name, std::function<void()> run);

}  // namespace gradrail
