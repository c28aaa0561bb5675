// The calls of the C library by which a program waits, measures time and draws random numbers. In a simulated thread
// they lead to the scheduler; elsewhere to the kernel. The shipped objects are linked as they are: the linker takes
// these definitions before those of the C library.
#include <bits/atomic_futex.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <deque>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/runtime.h"
#include "tests/simulation/scheduler.h"

#define SIMULATED extern "C" __attribute__((visibility("default")))

namespace gradrail::simulation {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int kFirstEventFd = 1 << 20;  // no descriptor of the kernel is as high

Scheduler& scheduler() { return Scheduler::instance(); }
int64_t nanoseconds(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

/// The first field of glibc's mutex is its lock, 0 while it is free. Here: the number of its owner.
struct MutexFields {
  int owner;
  unsigned count;
};
MutexFields& fields_of(pthread_mutex_t* mutex) { return *reinterpret_cast<MutexFields*>(mutex); }
bool is_recursive(const pthread_mutex_t* mutex) { return (mutex->__data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE; }
int self() { return scheduler().in_fiber() ? static_cast<int>(scheduler().current().id) : -1; }

struct EventFd {
  uint64_t count = 0;
  bool open = false;
};
std::deque<EventFd>& event_fds() {
  static auto* const fds = new std::deque<EventFd>;
  return *fds;
}
EventFd* event_fd(int fd) {
  const auto index = static_cast<size_t>(fd - kFirstEventFd);
  return fd >= kFirstEventFd && index < event_fds().size() ? &event_fds()[index] : nullptr;
}

std::vector<int64_t>& wall_offsets() {
  static auto* const offsets = new std::vector<int64_t>;
  return *offsets;
}

Random& entropy() {
  static auto* const random = new Random(0);
  return *random;
}

int64_t deadline_of(clockid_t clock, const timespec& at) {
  // A wait for a wall time ends at the steady time that is as far away now.
  if (clock == CLOCK_MONOTONIC) return nanoseconds(at);
  return nanoseconds(at) - wall_time(scheduler().process(), scheduler().now()) + scheduler().now();
}

void lock(pthread_mutex_t* mutex) {
  MutexFields& fields = fields_of(mutex);
  if (fields.owner == self() && is_recursive(mutex)) {
    ++fields.count;
    return;
  }
  while (fields.owner != 0) scheduler().wait({mutex}, INT64_MAX);
  fields = {.owner = self(), .count = 1};
  if (scheduler().in_fiber()) ++scheduler().current().locks;
}

void unlock(pthread_mutex_t* mutex) {
  MutexFields& fields = fields_of(mutex);
  GRADRAIL_CHECK(fields.owner != 0);
  if (--fields.count > 0) return;
  fields.owner = 0;
  if (scheduler().in_fiber()) --scheduler().current().locks;
  scheduler().wake(mutex, false);
}

int wait_condition(pthread_cond_t* condition, pthread_mutex_t* mutex, int64_t deadline) {
  unlock(mutex);
  const bool woken = scheduler().wait({condition}, deadline);
  lock(mutex);
  return woken ? 0 : ETIMEDOUT;
}

bool wait_futex(const unsigned* address, unsigned value, bool has_timeout, int64_t deadline) {
  if (*address != value) return true;
  return scheduler().wait({address}, has_timeout ? deadline : INT64_MAX);
}

}  // namespace

void seed_entropy(uint64_t seed) { entropy() = Random(seed, 2); }

void shift_wall_clock(ProcessId process, int64_t by_ns) {
  if (wall_offsets().size() <= process) wall_offsets().resize(process + 1);
  wall_offsets()[process] += by_ns;
}

int64_t wall_time(ProcessId process, int64_t steady_ns) {
  constexpr int64_t kBegin = 1'795'000'000;  // in November 2026
  const int64_t offset = process < wall_offsets().size() ? wall_offsets()[process] : 0;
  return kBegin * kSecond + steady_ns - Scheduler::kStart + offset;
}

}  // namespace gradrail::simulation

using namespace gradrail::simulation;

// Threads.

SIMULATED int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*body)(void*), void* argument) {
  GRADRAIL_CHECK(scheduler().in_fiber());  // the simulation has one thread
  Fiber* const fiber = scheduler().spawn(scheduler().process(), [body, argument] { body(argument); });
  *thread = reinterpret_cast<pthread_t>(fiber);
  return 0;
}
SIMULATED int pthread_join(pthread_t thread, void**) {
  auto* const fiber = reinterpret_cast<Fiber*>(thread);
  while (!fiber->is_done) scheduler().wait({fiber}, INT64_MAX);
  return 0;
}
SIMULATED int pthread_detach(pthread_t) { return 0; }
SIMULATED int pthread_setname_np(pthread_t, const char*) { return 0; }
SIMULATED int setpriority(__priority_which_t, id_t, int) { return 0; }

// Locks.

SIMULATED int pthread_mutex_lock(pthread_mutex_t* mutex) {
  scheduler().maybe_preempt();
  lock(mutex);
  return 0;
}
SIMULATED int pthread_mutex_trylock(pthread_mutex_t* mutex) {
  if (fields_of(mutex).owner != 0 && !(fields_of(mutex).owner == self() && is_recursive(mutex))) return EBUSY;
  lock(mutex);
  return 0;
}
SIMULATED int pthread_mutex_unlock(pthread_mutex_t* mutex) {
  unlock(mutex);
  return 0;
}
SIMULATED int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  return wait_condition(condition, mutex, INT64_MAX);
}
SIMULATED int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* at) {
  return wait_condition(condition, mutex, deadline_of(CLOCK_REALTIME, *at));
}
SIMULATED int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                     const timespec* at) {
  return wait_condition(condition, mutex, deadline_of(clock, *at));
}
SIMULATED int pthread_cond_signal(pthread_cond_t* condition) {
  scheduler().wake(condition, false);
  return 0;
}
SIMULATED int pthread_cond_broadcast(pthread_cond_t* condition) {
  scheduler().wake(condition, true);
  return 0;
}
SIMULATED int pthread_once(pthread_once_t* once, void (*body)()) {
  // 0: not yet, 1: under way, 2: done.
  while (*once == 1) scheduler().wait({once}, INT64_MAX);
  if (*once == 2) return 0;
  *once = 1;
  body();
  *once = 2;
  scheduler().wake(once, true);
  return 0;
}

// The waits of std::future.
namespace std {
__attribute__((visibility("default"))) bool __atomic_futex_unsigned_base::_M_futex_wait_until(
    unsigned* address, unsigned value, bool has_timeout, chrono::seconds s, chrono::nanoseconds ns) {
  const timespec at{.tv_sec = s.count(), .tv_nsec = ns.count()};
  return wait_futex(address, value, has_timeout, has_timeout ? deadline_of(CLOCK_REALTIME, at) : 0);
}
__attribute__((visibility("default"))) bool __atomic_futex_unsigned_base::_M_futex_wait_until_steady(
    unsigned* address, unsigned value, bool has_timeout, chrono::seconds s, chrono::nanoseconds ns) {
  return wait_futex(address, value, has_timeout, s.count() * kSecond + ns.count());
}
__attribute__((visibility("default"))) void __atomic_futex_unsigned_base::_M_futex_notify_all(unsigned* address) {
  scheduler().wake(address, true);
}
}  // namespace std

// Clocks and sleep.

SIMULATED int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (!scheduler().in_fiber()) return static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  const int64_t steady = scheduler().look_at_clock();
  const int64_t ns = clock == CLOCK_REALTIME ? wall_time(scheduler().process(), steady) : steady;
  *time = {.tv_sec = ns / kSecond, .tv_nsec = ns % kSecond};
  return 0;
}
SIMULATED int nanosleep(const timespec* time, timespec*) {
  scheduler().sleep_until(scheduler().now() + nanoseconds(*time));
  return 0;
}
SIMULATED int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec*) {
  const bool absolute = (flags & TIMER_ABSTIME) != 0;
  scheduler().sleep_until(absolute ? deadline_of(clock, *time) : scheduler().now() + nanoseconds(*time));
  return 0;
}
SIMULATED int sched_yield() noexcept {
  if (scheduler().in_fiber()) scheduler().yield();
  return 0;
}

// Random numbers.

SIMULATED ssize_t getrandom(void* target, size_t bytes, unsigned) {
  auto* const out = static_cast<unsigned char*>(target);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(entropy().next());
  return static_cast<ssize_t>(bytes);
}

// Descriptors.

SIMULATED int eventfd(unsigned count, int) noexcept {
  event_fds().push_back({.count = count, .open = true});
  return kFirstEventFd + static_cast<int>(event_fds().size()) - 1;
}

SIMULATED int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t*) {
  std::vector<const void*> keys;
  const int64_t deadline = timeout == nullptr ? INT64_MAX : scheduler().now() + nanoseconds(*timeout);
  while (true) {
    int ready = 0;
    keys.clear();
    for (nfds_t i = 0; i < count; ++i) {
      const EventFd* const found = event_fd(fds[i].fd);
      GRADRAIL_CHECK(found != nullptr);  // simulated threads wait for simulated events only
      fds[i].revents = found->count > 0 ? POLLIN : 0;
      ready += found->count > 0 ? 1 : 0;
      keys.push_back(found);
    }
    if (ready > 0 || scheduler().now() >= deadline) return ready;
    if (!scheduler().wait_any(keys, deadline)) return 0;
  }
}

SIMULATED ssize_t read(int fd, void* target, size_t bytes) {
  EventFd* const found = event_fd(fd);
  if (found == nullptr) return Disk::instance().read(fd, target, bytes);
  if (found->count == 0) {
    errno = EAGAIN;
    return -1;
  }
  std::memcpy(target, &found->count, sizeof(found->count));
  found->count = 0;
  return sizeof(found->count);
}

SIMULATED ssize_t write(int fd, const void* source, size_t bytes) {
  EventFd* const found = event_fd(fd);
  if (found == nullptr) return Disk::instance().write(fd, source, bytes);
  uint64_t add = 0;
  std::memcpy(&add, source, sizeof(add));
  found->count += add;
  scheduler().wake(found, true);
  return sizeof(add);
}

SIMULATED int close(int fd) {
  if (EventFd* const found = event_fd(fd); found != nullptr) {
    found->open = false;
    return 0;
  }
  return Disk::instance().close(fd);
}

SIMULATED int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  return Disk::instance().open(path, flags, mode);
}
SIMULATED int fsync(int fd) { return Disk::instance().fsync(fd); }
SIMULATED int rename(const char* from, const char* to) noexcept { return Disk::instance().rename(from, to); }
SIMULATED int unlink(const char* path) noexcept { return Disk::instance().unlink(path); }
SIMULATED int remove(const char* path) noexcept {
  const int done = Disk::instance().unlink(path);
  return done != 0 && errno == EISDIR ? rmdir(path) : done;
}
