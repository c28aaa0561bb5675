#pragma once

#include <sys/types.h>

namespace gradrail::bench {

/// Forks a process that must not outlive this one. A signal ends the child when this process ends, whatever the cause,
/// and when this process receives one (end_children_on_signals, inherited). The child has its own group, for the
/// processes that it starts.
/// Returns 0 in the child, -1 when no process could be started.
/// Threads  Only the caller's may run, unless the child calls exec() immediately.
pid_t fork_child();

/// Sends SIGTERM and waits for the child. Kills it with its group if it has not ended after 0.6 s.
void end_child(pid_t child);

/// Waits until the child has ended by itself; returns the status of waitpid.
int wait_child(pid_t child);

/// Ends the children that have not ended by themselves within a short time.
void end_children();

/// SIGTERM, SIGINT and SIGHUP end all children and then this process, with exit code 128 + the signal. Politely first:
/// mpirun has ranks to end, and libfabric files to remove.
void end_children_on_signals();

}  // namespace gradrail::bench
