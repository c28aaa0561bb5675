#include "bench/driver/children.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

namespace gradrail::bench {
namespace {

// A batch system, a user, a closed terminal.
constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP};
// Length of a step of a wait. A child that ends immediately costs one of them.
constexpr int kTick_ms = 2;
// The grace of a process for its children; they have the same for theirs. All of it is over within a second.
constexpr int kGrace_ms = 300;
// Longer than the grace of a child for its own children (300 ms) plus the wait after SIGKILL there.
constexpr int kGraceOutermost_ms = 700;
constexpr size_t kMost = 512;  // workers of one run, and some

// A signal handler takes no arguments: its data is global.
std::array<std::atomic<pid_t>, kMost> children;
std::atomic<bool> outermost = false;

sigset_t signals_to_end() {
  sigset_t all;
  sigemptyset(&all);
  for (const int signal : kSignals) sigaddset(&all, signal);
  return all;
}

void block_signals(sigset_t* before) {
  const sigset_t all = signals_to_end();
  sigprocmask(SIG_BLOCK, &all, before);
}

void note_child(pid_t child) {
  for (std::atomic<pid_t>& entry : children) {
    pid_t none = 0;
    // Compare-and-swap and no lock: a signal handler that interrupts this line may change the list.
    if (entry.compare_exchange_strong(none, child)) return;
  }
}

void forget_child(pid_t child) {
  for (std::atomic<pid_t>& entry : children) {
    pid_t expected = child;
    if (entry.compare_exchange_strong(expected, 0)) return;
  }
}

/// Waits one step. Signal handlers may call it, and all functions that it calls.
void nap() {
  const timespec tick{.tv_sec = 0, .tv_nsec = kTick_ms * 1'000'000};
  nanosleep(&tick, nullptr);
}

// Whether a child has ended. True also for an error: another call has waited for this child already.
bool has_ended(pid_t child) { return waitpid(child, nullptr, WNOHANG) != 0; }

void tell_all(int signal) {
  for (const std::atomic<pid_t>& entry : children) {
    const pid_t child = entry;
    if (child > 0) kill(child, signal);
  }
}

bool all_ended_within(int milliseconds) {
  for (int waited = 0;; waited += kTick_ms) {
    bool all = true;
    for (std::atomic<pid_t>& entry : children) {
      const pid_t child = entry;
      if (child <= 0) continue;
      if (has_ended(child)) {
        forget_child(child);
      } else {
        all = false;
      }
    }
    if (all || waited >= milliseconds) return all;
    nap();
  }
}

/// The child and what it has started.
void kill_hard(pid_t child) {
  kill(-child, SIGKILL);
  kill(child, SIGKILL);
}

void end_all_within(int milliseconds) {
  tell_all(SIGTERM);
  if (all_ended_within(milliseconds)) return;
  for (const std::atomic<pid_t>& entry : children) {
    const pid_t child = entry;
    if (child > 0) kill_hard(child);
  }
  all_ended_within(kGrace_ms);
}

// The handler uses only functions that are safe in one: kill(), waitpid(), nanosleep(), _exit() and lock-free atomics.
void on_signal(int signal) {
  end_all_within(outermost ? kGraceOutermost_ms : kGrace_ms);
  _exit(128 + signal);
}

}  // namespace

pid_t fork_child() {
  const pid_t parent = getpid();
  sigset_t before;
  // A signal between fork() and note_child() would end this process and leave a child that no list has.
  block_signals(&before);
  const pid_t child = fork();
  if (child == 0) {
    // Both sides set the group, because either may run first.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    // The list is a copy of the parent's: those processes are not children of this one.
    for (std::atomic<pid_t>& entry : children) entry = 0;
    outermost = false;
    if (getppid() != parent) _exit(1);  // it ended before this process could request the signal
  } else if (child > 0) {
    setpgid(child, child);  // the first of the two does it
    note_child(child);
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return child;
}

void end_child(pid_t child) {
  kill(child, SIGTERM);
  for (int waited = 0; !has_ended(child); waited += kTick_ms) {
    // Later than the child's own grace for its children: it can end them in order.
    if (waited >= 2 * kGrace_ms) kill_hard(child);
    nap();
  }
  kill(-child, SIGKILL);  // processes that it has started
  forget_child(child);
}

int wait_child(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  forget_child(child);
  return status;
}

void end_children() {
  // Children that are about to end get no signal.
  if (!all_ended_within(kGrace_ms)) end_all_within(kGrace_ms);
}

void end_children_on_signals() {
  outermost = true;
  struct sigaction action {};
  action.sa_handler = on_signal;
  // A second signal must not interrupt the first one's clean-up.
  action.sa_mask = signals_to_end();
  for (const int signal : kSignals) sigaction(signal, &action, nullptr);
  // The program that started this one may have blocked them (schedulers do), and that is inherited.
  sigprocmask(SIG_UNBLOCK, &action.sa_mask, nullptr);
}

}  // namespace gradrail::bench
