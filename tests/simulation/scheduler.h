#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/random.h"

namespace gradrail::simulation {

/// A simulated process. Number 0 is the simulation itself, which no fault stops.
using ProcessId = uint32_t;

/// A simulated thread: a stack of its own in the one thread of the program.
struct Fiber {
  uint64_t id = 0;
  ProcessId process = 0;
  std::function<void()> body;
  char* stack = nullptr;
  ucontext_t first = {};  ///< the first switch to it uses this, each other one `jump`
  jmp_buf jump = {};
  bool has_begun = false;
  bool is_done = false;    ///< ended or killed: it never runs again
  bool is_joined = false;  ///< another fiber frees it
  bool was_woken = false;
  uint64_t wait = 0;  ///< number of its present wait; older wake-ups do not count
  int locks = 0;      ///< mutexes that it holds
  int saved_errno = 0;
};

/// Runs all threads of all simulated processes in one thread, one at a time. A seeded random number decides which of
/// those that can run is next, so that a seed gives one run. Time is virtual: it moves on when no fiber can run.
class Scheduler {
 public:
  static constexpr int64_t kStart = 1'000'000'000'000;  ///< steady clock at the begin, ns

  /// The one scheduler of the program; runtime.cc leads the calls of the C library to it.
  static Scheduler& instance();
  void seed(uint64_t seed) { random_ = Random(seed, 1); }

  Fiber* spawn(ProcessId process, std::function<void()> body);
  /// Calls `call` at `at_ns`, between two fibers. It must not wait.
  void at(int64_t at_ns, std::function<void()> call);
  /// Runs until `is_over`, until nothing can happen any more, or for `max_switches`.
  enum class End { over, deadlock, too_long };
  End run(const std::function<bool()>& is_over, uint64_t max_switches);

  // The calling fiber.
  bool in_fiber() const { return current_ != nullptr; }
  ProcessId process() const { return current_ == nullptr ? 0 : current_->process; }
  Fiber& current() { return *current_; }
  void sleep_until(int64_t at_ns);
  void yield();
  /// Waits for wake() of one of `keys`; false when `deadline_ns` has passed first.
  bool wait(std::initializer_list<const void*> keys, int64_t deadline_ns) { return wait_any({keys}, deadline_ns); }
  bool wait_any(const std::vector<const void*>& keys, int64_t deadline_ns);
  /// At some calls of a mutex another thread runs first.
  void maybe_preempt();
  [[noreturn]] void exit_fiber();
  void wake(const void* key, bool all);

  // Processes.
  /// Ends all fibers of a process where they are: no destructor runs.
  void kill(ProcessId process);
  /// The process does not run until `until_ns`, as after SIGSTOP.
  void pause(ProcessId process, int64_t until_ns);
  bool is_killed(ProcessId process) const { return process < killed_.size() && killed_[process]; }

  int64_t now() const { return now_; }
  /// A look at the clock takes time: a loop that waits for a time ends.
  int64_t look_at_clock();
  uint64_t switches() const { return switches_; }

  /// Adds to the hash of the run; `text` also to the last events.
  void trace(const std::string& text);
  uint64_t hash() const { return hash_; }
  const std::deque<std::string>& last_events() const { return last_events_; }
  bool print_trace = false;

 private:
  struct Timer {
    int64_t at = 0;
    uint64_t order = 0;
    Fiber* fiber = nullptr;  ///< null: calls `call`
    uint64_t wait = 0;
    std::shared_ptr<std::function<void()>> call;
    bool operator<(const Timer& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  struct Waiter {
    Fiber* fiber = nullptr;
    uint64_t wait = 0;
  };

  void make_runnable(Fiber& fiber, bool was_woken);
  void switch_to(Fiber& fiber);
  void leave();
  void fire(const Timer& timer);
  void add(uint64_t value) { hash_ = (hash_ ^ value) * 0x100000001b3ull; }
  static void enter();

  Random random_{0};
  int64_t now_ = kStart;
  uint64_t hash_ = 0xcbf29ce484222325ull;
  uint64_t next_id_ = 1, next_order_ = 1, switches_ = 0;
  int looks_ = 0;
  Fiber* current_ = nullptr;
  jmp_buf main_ = {};
  ucontext_t main_context_ = {};
  std::vector<Fiber*> runnable_;
  std::vector<Fiber*> fibers_;
  std::vector<char*> free_stacks_;
  std::unordered_map<const void*, std::deque<Waiter>> waiters_;
  std::priority_queue<Timer> timers_;
  std::vector<bool> killed_;
  std::vector<int64_t> paused_until_;
  std::deque<std::string> last_events_;
};

}  // namespace gradrail::simulation
