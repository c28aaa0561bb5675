#include "launch/task/signal_thread.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/read_file.h"
#include "base/resource_limits.h"
#include "base/status.h"

namespace gradrail::launch {
namespace {

/// nohup ignores SIGHUP for its program.
bool hangup_is_ignored() {
  struct sigaction action {};
  return sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

sigset_t signal_set(std::initializer_list<int> numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : numbers) sigaddset(&set, number);
  return set;
}

sigset_t taken_signals() {
  sigset_t taken = signal_set({SIGTERM, SIGINT, SIGUSR1, kStopOfSupervisor});
  if (!hangup_is_ignored()) sigaddset(&taken, SIGHUP);
  return taken;
}

bool is_stop(int signal_number) {
  return signal_number == SIGTERM || signal_number == SIGINT || signal_number == SIGHUP;
}

void block_signals() {
  const sigset_t taken = taken_signals();
  GRADRAIL_CHECK(pthread_sigmask(SIG_BLOCK, &taken, nullptr) == 0);
  // A shell without job control starts background jobs with SIGINT ignored, and an ignored signal may never be pending.
  for (int number = 1; number < NSIG; ++number) {
    if (sigismember(&taken, number) == 1) std::signal(number, SIG_DFL);
  }
}

void end_by(int signal_number) {
  std::signal(signal_number, SIG_DFL);
  const sigset_t one = signal_set({signal_number});
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  std::raise(signal_number);
  _exit(128 + signal_number);  // the first process of a container ignores default actions
}

SignalThread::SignalThread(Task task) : task_(task), accepts_stop_(task != Task::kRendezvous) {
  std::signal(SIGPIPE, SIG_IGN);  // a write to a closed connection returns an error
  // Last: run() uses all other members.
  absl::StatusOr<std::thread> started = start_thread("of signals", [this] { run(); });
  if (!started.ok()) {
    // A task without it would take no signal. It has not started anything yet.
    print_text(stderr, "gradrail: {}\n", message_of(started.status()));
    _exit(exit_code(started.status()));
  }
  thread_ = *std::move(started);
}

SignalThread::~SignalThread() {
  ending_.store(true);
  // Any of the awaited signals ends sigwait(); run() then sees `ending_`.
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

void SignalThread::run() {
  pthread_setname_np(pthread_self(), "gradrail-signal");
  const sigset_t taken = taken_signals();
  while (true) {
    int number = 0;
    // All other threads have these signals blocked, as block_signals() left them: only this call takes a signal.
    GRADRAIL_CHECK(sigwait(&taken, &number) == 0);
    // Tested first: the signal of the destructor is not a request for a dump.
    if (ending_.load()) return;
    take(number);
  }
}

void SignalThread::take(int signal_number) {
  if (signal_number == SIGUSR1) {
    // A counter, so that two requests in short order give two dumps.
    dumps_.fetch_add(1);
    return wake();
  }
  // Ctrl-C reaches the whole process group. The ps stays until its workers have left, and the supervisor stops it then.
  if (task_ == Task::kLocalPs && signal_number != kStopOfSupervisor) return;
  if (task_ == Task::kOwn || task_ == Task::kRendezvous) {
    // No supervisor sends kStopOfSupervisor to such a task: its default action applies.
    if (!accepts_stop_.load() || signal_number == kStopOfSupervisor) end_by(signal_number);
    const TimePoint now = Clock::now();
    // The end of a terminal is no request to kill.
    const bool is_second = requested_at_ != TimePoint::max() && now - requested_at_ >= kOneRequest;
    if (is_second && signal_number != SIGHUP) end_by(signal_number);
    // Launchers and terminals may deliver one request several times: those within kOneRequest count as one.
    requested_at_ = std::min(requested_at_, now);
  }
  request_stop();
}

void SignalThread::follow_cpus() {
  cpu_set_t cpus;
  if (pthread_getaffinity_np(pthread_self(), sizeof(cpus), &cpus) != 0) return;
  pthread_setaffinity_np(thread_.native_handle(), sizeof(cpus), &cpus);  // where it fails, the thread sleeps elsewhere
}

void SignalThread::request_stop() {
  // Before wake(): a thread that wakes up must see the request.
  stop_.store(true);
  end_pipe_waits();  // of the start
  wake();
}

void SignalThread::wake() {
  // The lock is held during the call, so that ~Waker() waits until the object is no longer used.
  const MutexLock lock(mutex_);
  if (wake_) wake_();
}

SignalThread::Waker::Waker(SignalThread& signals, std::function<void()> wake) : signals_(signals) {
  const MutexLock lock(signals_.mutex_);
  // Two users would overwrite each other.
  GRADRAIL_CHECK(!signals_.wake_);
  signals_.wake_ = std::move(wake);
}

SignalThread::Waker::~Waker() {
  const MutexLock lock(signals_.mutex_);
  signals_.wake_ = nullptr;
}

}  // namespace gradrail::launch
