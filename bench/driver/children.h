#pragma once

#include <sys/types.h>

namespace gradrail::bench {

/// fork() for processes that must not outlive us. A signal ends them when we end, however that happens, and when we
/// are (end_children_on_signals, which they inherit). Each has a group of its own, for what it starts itself.
/// Returns 0 in the child, -1 when no process could be started.
/// Threads  Only the caller's may run, unless the child calls exec() at once.
pid_t fork_child();

/// Sends SIGTERM and waits for the child. Kills it with its group if it has not ended after 0.6 s.
void end_child(pid_t child);

/// Until it has ended by itself; what waitpid says of it.
int wait_child(pid_t child);

/// Those that have not ended by themselves within a moment.
void end_children();

/// SIGTERM, SIGINT and SIGHUP end all children and then this process, with exit code 128 + the signal. Politely first:
/// mpirun has ranks to end, and libfabric files to remove.
void end_children_on_signals();

}  // namespace gradrail::bench
