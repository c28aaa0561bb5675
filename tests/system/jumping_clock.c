/* For LD_PRELOAD: adds an offset to the wall clock of a process, as a step of the clock of its host does. The offset is
   8 bytes, in ns, in the file $GRADRAIL_CLOCK_OFFSET_FILE, and can change at any time. Monotonic clocks keep their time.
   Waits until a point of the wall clock are cut into pieces, so that they end when a step has passed that point. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t kSecond = 1000000000;
static const int64_t kPiece = 20000000;
static const int64_t kFarFuture = 8000000000; /* s: a time in ns must not overflow */

static const volatile int64_t* offset_;
static int (*real_clock_gettime)(clockid_t, struct timespec*);
static int (*real_cond_timedwait)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*);
static int (*real_cond_clockwait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
static int (*real_sem_timedwait)(sem_t*, const struct timespec*);
static long (*real_syscall)(long, ...);

__attribute__((constructor)) static void begin(void) {
  real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  real_cond_timedwait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  real_cond_clockwait = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  real_sem_timedwait = dlsym(RTLD_NEXT, "sem_timedwait");
  real_syscall = dlsym(RTLD_NEXT, "syscall");
  const char* path = getenv("GRADRAIL_CLOCK_OFFSET_FILE");
  const int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  void* mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (mapped != MAP_FAILED) offset_ = mapped;
  close(file);
}

static int64_t offset(void) { return offset_ == NULL ? 0 : *offset_; }
static int64_t ns_of(const struct timespec* time) { return time->tv_sec * kSecond + time->tv_nsec; }
static struct timespec timespec_of(int64_t ns) {
  struct timespec time = {ns / kSecond, ns % kSecond};
  if (time.tv_nsec < 0) time = (struct timespec){time.tv_sec - 1, time.tv_nsec + kSecond};
  return time;
}
static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

static int64_t real_wall(void) {
  struct timespec now;
  if (real_clock_gettime == NULL) begin();
  real_clock_gettime(CLOCK_REALTIME, &now);
  return ns_of(&now);
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  if (real_clock_gettime == NULL) begin();
  const int result = real_clock_gettime(clock, time);
  if (result == 0 && is_wall(clock)) *time = timespec_of(ns_of(time) + offset());
  return result;
}

int gettimeofday(struct timeval* restrict time, void* restrict zone) {
  (void)zone;
  const struct timespec now = timespec_of(real_wall() + offset());
  *time = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* result) {
  const time_t now = timespec_of(real_wall() + offset()).tv_sec;
  if (result != NULL) *result = now;
  return now;
}

/* The end of the next piece of a wait until `deadline` of the shifted clock, on the real one. */
static struct timespec piece_of(const struct timespec* deadline, int* is_last) {
  const int64_t piece = real_wall() + kPiece;
  *is_last = deadline->tv_sec < kFarFuture && ns_of(deadline) - offset() <= piece;
  if (!*is_last) return timespec_of(piece);
  const int64_t until = ns_of(deadline) - offset();
  return timespec_of(until < 0 ? 0 : until); /* the kernel refuses times before 1970 */
}

/* glibc keeps the clock of a condition in this bit: set for the monotonic clock. */
static int is_monotonic(const pthread_cond_t* condition) { return (condition->__data.__wrefs & 2) != 0; }

/* An end before the deadline is a spurious wake-up, which each caller expects. */
int pthread_cond_timedwait(pthread_cond_t* restrict condition, pthread_mutex_t* restrict mutex,
                           const struct timespec* restrict deadline) {
  if (is_monotonic(condition)) return real_cond_timedwait(condition, mutex, deadline);
  int is_last = 0;
  const struct timespec until = piece_of(deadline, &is_last);
  const int result = real_cond_timedwait(condition, mutex, &until);
  return result == ETIMEDOUT && !is_last ? 0 : result;
}

int pthread_cond_clockwait(pthread_cond_t* restrict condition, pthread_mutex_t* restrict mutex, clockid_t clock,
                           const struct timespec* restrict deadline) {
  if (!is_wall(clock)) return real_cond_clockwait(condition, mutex, clock, deadline);
  int is_last = 0;
  const struct timespec until = piece_of(deadline, &is_last);
  const int result = real_cond_clockwait(condition, mutex, clock, &until);
  return result == ETIMEDOUT && !is_last ? 0 : result;
}

int sem_timedwait(sem_t* restrict semaphore, const struct timespec* restrict deadline) {
  for (;;) {
    int is_last = 0;
    const struct timespec until = piece_of(deadline, &is_last);
    const int result = real_sem_timedwait(semaphore, &until);
    if (result == 0 || errno != ETIMEDOUT || is_last) return result;
  }
}

/* Abseil waits with futexes. */
long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long word[6];
  for (int i = 0; i < 6; ++i) word[i] = va_arg(list, long);
  va_end(list);
  if (real_syscall == NULL) begin();
  const struct timespec* deadline = (const struct timespec*)word[3];
  const int command = (int)word[1] & FUTEX_CMD_MASK;
  const int waits = number == SYS_futex && command == FUTEX_WAIT_BITSET && deadline != NULL &&
                    ((int)word[1] & FUTEX_CLOCK_REALTIME) != 0;
  if (!waits) return real_syscall(number, word[0], word[1], word[2], word[3], word[4], word[5]);
  int is_last = 0;
  const struct timespec until = piece_of(deadline, &is_last);
  const long result = real_syscall(number, word[0], word[1], word[2], (long)&until, word[4], word[5]);
  if (result != 0 && errno == ETIMEDOUT && !is_last) errno = EINTR; /* the caller waits again */
  return result;
}
