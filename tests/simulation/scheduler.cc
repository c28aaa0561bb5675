#include "tests/simulation/scheduler.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "fmt/format.h"

namespace gradrail::simulation {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kLastEvents = 50;
/// A fiber that looks at the clock so often without a wait polls: others run first.
constexpr int kLooksPerTurn = 64;
constexpr int64_t kLookNs = 50;

}  // namespace

Scheduler& Scheduler::instance() {
  // Never destroyed: the C library calls runtime.cc until the program has ended.
  static Scheduler* const scheduler = new Scheduler;
  return *scheduler;
}

Fiber* Scheduler::spawn(ProcessId process, std::function<void()> body) {
  auto* fiber = new Fiber;
  fiber->id = next_id_++;
  fiber->process = process;
  fiber->body = std::move(body);
  if (free_stacks_.empty()) free_stacks_.push_back(new char[kStackBytes]);
  fiber->stack = free_stacks_.back();
  free_stacks_.pop_back();
  fibers_.push_back(fiber);
  make_runnable(*fiber, true);
  return fiber;
}

void Scheduler::at(int64_t at_ns, std::function<void()> call) {
  timers_.push({.at = std::max(at_ns, now_),
                .order = next_order_++,
                .call = std::make_shared<std::function<void()>>(std::move(call))});
}

void Scheduler::make_runnable(Fiber& fiber, bool was_woken) {
  ++fiber.wait;  // its other wake-ups and its timer do not count any more
  fiber.was_woken = was_woken;
  runnable_.push_back(&fiber);
}

Scheduler::End Scheduler::run(const std::function<bool()>& is_over, uint64_t max_switches) {
  std::vector<size_t> ready;
  while (!is_over()) {
    if (switches_ >= max_switches) return End::too_long;
    std::erase_if(runnable_, [](const Fiber* fiber) { return fiber->is_done; });
    ready.clear();
    for (size_t i = 0; i < runnable_.size(); ++i) {
      const ProcessId process = runnable_[i]->process;
      if (process >= paused_until_.size() || paused_until_[process] <= now_) ready.push_back(i);
    }
    if (!ready.empty()) {
      const size_t chosen = ready[random_.below(ready.size())];
      Fiber& fiber = *runnable_[chosen];
      runnable_.erase(runnable_.begin() + static_cast<ptrdiff_t>(chosen));
      switch_to(fiber);
      continue;
    }
    if (timers_.empty()) return End::deadlock;
    const Timer timer = timers_.top();
    timers_.pop();
    now_ = std::max(now_, timer.at);
    fire(timer);
  }
  return End::over;
}

void Scheduler::fire(const Timer& timer) {
  if (timer.call != nullptr) return (*timer.call)();
  if (!timer.fiber->is_done && timer.fiber->wait == timer.wait) make_runnable(*timer.fiber, false);
}

void Scheduler::enter() {
  Scheduler& self = instance();
  self.current_->body();
  self.exit_fiber();
}

void Scheduler::switch_to(Fiber& fiber) {
  ++switches_;
  add(fiber.id);
  looks_ = 0;
  current_ = &fiber;
  errno = fiber.saved_errno;
  if (_setjmp(main_) == 0) {
    if (fiber.has_begun) _longjmp(fiber.jump, 1);
    fiber.has_begun = true;
    getcontext(&fiber.first);
    fiber.first.uc_stack.ss_sp = fiber.stack;
    fiber.first.uc_stack.ss_size = kStackBytes;
    fiber.first.uc_link = nullptr;
    makecontext(&fiber.first, &Scheduler::enter, 0);
    setcontext(&fiber.first);
  }
  current_ = nullptr;
  if (fiber.is_done && fiber.stack != nullptr) {
    free_stacks_.push_back(fiber.stack);
    fiber.stack = nullptr;
  }
}

/// Gives the processor back; returns when the scheduler has chosen this fiber again.
void Scheduler::leave() {
  Fiber& fiber = *current_;
  fiber.saved_errno = errno;
  if (_setjmp(fiber.jump) == 0) _longjmp(main_, 1);
}

void Scheduler::exit_fiber() {
  Fiber& fiber = *current_;
  fiber.is_done = true;
  wake(&fiber, true);
  _longjmp(main_, 1);
}

void Scheduler::yield() {
  make_runnable(*current_, true);
  leave();
}

void Scheduler::sleep_until(int64_t at_ns) { wait({}, at_ns); }

bool Scheduler::wait_any(const std::vector<const void*>& keys, int64_t deadline_ns) {
  GRADRAIL_CHECK(current_ != nullptr);  // the simulation itself must not wait
  Fiber& fiber = *current_;
  const uint64_t number = ++fiber.wait;
  for (const void* key : keys) waiters_[key].push_back({&fiber, number});
  if (deadline_ns != INT64_MAX) {
    timers_.push({.at = deadline_ns, .order = next_order_++, .fiber = &fiber, .wait = number});
  }
  leave();
  return fiber.was_woken;
}

void Scheduler::wake(const void* key, bool all) {
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  std::deque<Waiter>& waiting = found->second;
  while (!waiting.empty()) {
    const Waiter waiter = waiting.front();
    waiting.pop_front();
    if (waiter.fiber->is_done || waiter.fiber->wait != waiter.wait) continue;
    make_runnable(*waiter.fiber, true);
    if (!all) break;
  }
  if (waiting.empty()) waiters_.erase(found);
}

void Scheduler::maybe_preempt() {
  // A fiber that holds a lock of the whole program, as that of the log, must not be killed between two instructions.
  if (current_ != nullptr && current_->locks == 0 && random_.below(16) == 0) yield();
}

int64_t Scheduler::look_at_clock() {
  now_ += kLookNs;
  if (current_ != nullptr && current_->locks == 0 && ++looks_ >= kLooksPerTurn) yield();
  return now_;
}

void Scheduler::kill(ProcessId process) {
  GRADRAIL_CHECK(process != 0 && (current_ == nullptr || current_->process != process));
  if (killed_.size() <= process) killed_.resize(process + 1);
  killed_[process] = true;
  for (Fiber* fiber : fibers_) {
    if (fiber->process != process || fiber->is_done) continue;
    fiber->is_done = true;
    if (fiber->stack != nullptr) free_stacks_.push_back(std::exchange(fiber->stack, nullptr));
  }
  // Fibers stay allocated: old timers and wake-ups name them.
  std::erase_if(fibers_, [](const Fiber* fiber) { return fiber->is_done; });
}

void Scheduler::pause(ProcessId process, int64_t until_ns) {
  if (paused_until_.size() <= process) paused_until_.resize(process + 1);
  paused_until_[process] = until_ns;
  at(until_ns, [] {});  // time stops there: the process runs again
}

void Scheduler::trace(const std::string& text) {
  for (const char c : text) add(static_cast<unsigned char>(c));
  last_events_.push_back(fmt::format("{:11.6f} {}", static_cast<double>(now_ - kStart) * 1e-9, text));
  if (print_trace) std::printf("%s\n", last_events_.back().c_str());
  if (last_events_.size() > kLastEvents) last_events_.pop_front();
}

}  // namespace gradrail::simulation
