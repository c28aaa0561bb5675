#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <initializer_list>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "gradrail/clock.h"

namespace gradrail::launch {

/// Stop signals within this time are one request. `timeout` signals a process and then its group; a supervisor passes
/// on a signal that its tasks have received already.
constexpr Duration kOneRequest = std::chrono::seconds(1);

/// The supervisor of a local cluster stops its tasks by this signal. A signal to the process group cannot replace it.
constexpr int kStopOfSupervisor = SIGUSR2;

sigset_t signal_set(std::initializer_list<int> numbers);

/// The signals that a task takes: SIGUSR1, kStopOfSupervisor and those of is_stop(). SIGHUP is not taken where it was
/// ignored at the start of the process, as nohup does.
sigset_t taken_signals();
/// SIGTERM, SIGINT and SIGHUP, which a closed terminal sends.
bool is_stop(int signal_number);

/// Blocks taken_signals() in this thread, and so in each later thread and fork.
/// Threads  The process has no other thread yet.
void block_signals();

/// Ends this process as the default action of the signal does.
[[noreturn]] void end_by(int signal_number);

/// Takes the signals of a task in one thread, on an ordinary stack. A task installs no handler: oneDNN before 3.11.2
/// keeps the stack pointer in a heap workspace while it computes. The frame of a handler overwrites other objects
/// there (oneDNN issue 4845).
/// Threads  Any thread, after block_signals().
class SignalThread {
 public:
  enum class Task {
    kOwn,          ///< the first is_stop() stops it, one after kOneRequest ends it at once
    kRendezvous,   ///< the first one ends it at once until accept_stop(), then as kOwn
    kLocalWorker,  ///< each of them stops it; only its supervisor ends it
    kLocalPs,      ///< only kStopOfSupervisor stops it: its workers leave first
  };

  explicit SignalThread(Task task);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

  /// kRendezvous: the task has found the others, and can stop in order.
  void accept_stop() { accepts_stop_.store(true); }
  void request_stop();
  /// The signal thread runs on the cpus of the calling thread from now on, for example those that --cores names.
  void follow_cpus();

  const std::atomic<bool>& stop() const { return stop_; }
  /// The number of SIGUSR1 signals so far.
  const std::atomic<uint32_t>& dumps() const { return dumps_; }

  /// While it exists, each signal calls `wake` in the signal thread. One at a time.
  class Waker {
   public:
    Waker(SignalThread& signals, std::function<void()> wake);
    ~Waker();
    Waker(const Waker&) = delete;
    Waker& operator=(const Waker&) = delete;

   private:
    SignalThread& signals_;
  };

 private:
  void run();
  void take(int signal_number);
  void wake();

  const Task task_;
  std::atomic<bool> accepts_stop_;
  std::atomic<bool> stop_ = false;
  std::atomic<uint32_t> dumps_ = 0;
  std::atomic<bool> ending_ = false;
  TimePoint requested_at_ = TimePoint::max();  ///< signal thread: the first is_stop()
  Mutex mutex_;
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  ///< last: it uses the rest
};

}  // namespace gradrail::launch
