// Preloaded into all processes of a run: the kernel refuses one call. $FAILING_CALL names the kind of the call,
// $FAILING_CALL_AT the number of the call that fails, counted over all processes. The calls after it fail as well
// with $FAILING_CALL_STAYS, as they do at a limit. $FAILING_CALL_COUNTER is a file of zeros for the count.
// The file also receives the caller of the call that has failed.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { kPageBytes = 4096, kTextAt = 64 };

static const char* kind;
static unsigned long fails_at;
static int stays;
static char* page;  // the count, then a text

__attribute__((constructor)) static void open_counter(void) {
  kind = getenv("FAILING_CALL");
  const char* const at = getenv("FAILING_CALL_AT");
  const char* const file = getenv("FAILING_CALL_COUNTER");
  if (kind == NULL || at == NULL || file == NULL) return;
  fails_at = strtoul(at, NULL, 10);
  stays = getenv("FAILING_CALL_STAYS") != NULL;
  // System calls: the functions are those below.
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* const mapped = (void*)syscall(SYS_mmap, NULL, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped != MAP_FAILED) page = mapped;
}

static int is_refused(const char* call, const void* caller) {
  if (page == NULL || strcmp(call, kind) != 0) return 0;
  const unsigned long number = atomic_fetch_add((_Atomic unsigned long*)page, 1) + 1;
  if (number != fails_at && !(stays && fails_at > 0 && number > fails_at)) return 0;
  if (number == fails_at) {
    Dl_info from;
    const int known = dladdr(caller, &from) != 0;
    snprintf(page + kTextAt, kPageBytes - kTextAt, "%s in %s (%s)", call, known ? from.dli_fname : "?",
             known && from.dli_sname != NULL ? from.dli_sname : "?");
  }
  return 1;
}

// Each function looks for the one that it replaces.
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define REFUSE(call, error, result)                      \
  do {                                                   \
    if (is_refused(call, __builtin_return_address(0))) { \
      errno = (error);                                   \
      return (result);                                   \
    }                                                    \
  } while (0)

pid_t fork(void) {
  REFUSE("fork", EAGAIN, -1);
  return REAL(fork)();
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  REFUSE("thread", EAGAIN, EAGAIN);
  return REAL(pthread_create)(thread, attributes, run, argument);
}

int pipe(int ends[2]) {
  REFUSE("pipe", EMFILE, -1);
  return REAL(pipe)(ends);
}

int pipe2(int ends[2], int flags) {
  REFUSE("pipe", EMFILE, -1);
  return REAL(pipe2)(ends, flags);
}

int socket(int domain, int type, int protocol) {
  REFUSE("socket", EMFILE, -1);
  return REAL(socket)(domain, type, protocol);
}

int socketpair(int domain, int type, int protocol, int ends[2]) {
  REFUSE("socket", EMFILE, -1);
  return REAL(socketpair)(domain, type, protocol, ends);
}

int bind(int fd, const struct sockaddr* address, socklen_t bytes) {
  REFUSE("bind", EADDRINUSE, -1);
  return REAL(bind)(fd, address, bytes);
}

int listen(int fd, int backlog) {
  REFUSE("listen", EADDRINUSE, -1);
  return REAL(listen)(fd, backlog);
}

int accept4(int fd, struct sockaddr* address, socklen_t* bytes, int flags) {
  REFUSE("accept", EMFILE, -1);
  return REAL(accept4)(fd, address, bytes, flags);
}

int memfd_create(const char* name, unsigned flags) {
  REFUSE("memfd", EMFILE, -1);
  return REAL(memfd_create)(name, flags);
}

int ftruncate(int fd, off_t bytes) {
  REFUSE("ftruncate", ENOSPC, -1);
  return REAL(ftruncate)(fd, bytes);
}

void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  REFUSE("mmap", ENOMEM, MAP_FAILED);
  return REAL(mmap)(address, bytes, protection, flags, fd, offset);
}

void* mmap64(void* address, size_t bytes, int protection, int flags, int fd, off64_t offset) {
  REFUSE("mmap", ENOMEM, MAP_FAILED);
  return REAL(mmap64)(address, bytes, protection, flags, fd, offset);
}

int eventfd(unsigned value, int flags) {
  REFUSE("eventfd", EMFILE, -1);
  return REAL(eventfd)(value, flags);
}

int epoll_create1(int flags) {
  REFUSE("epoll", EMFILE, -1);
  return REAL(epoll_create1)(flags);
}

int epoll_create(int size) {
  REFUSE("epoll", EMFILE, -1);
  return REAL(epoll_create)(size);
}

int timerfd_create(int clock, int flags) {
  REFUSE("timerfd", EMFILE, -1);
  return REAL(timerfd_create)(clock, flags);
}

int signalfd(int fd, const sigset_t* set, int flags) {
  REFUSE("signalfd", EMFILE, -1);
  return REAL(signalfd)(fd, set, flags);
}

int dup(int fd) {
  REFUSE("dup", EMFILE, -1);
  return REAL(dup)(fd);
}

int dup2(int from, int to) {
  REFUSE("dup", EMFILE, -1);
  return REAL(dup2)(from, to);
}

// The mode is an argument where the flags ask for it.
static mode_t mode_of(int flags, va_list rest) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
}

#define OPEN(name)                             \
  int name(const char* path, int flags, ...) { \
    REFUSE("open", EMFILE, -1);                \
    va_list rest;                              \
    va_start(rest, flags);                     \
    const mode_t mode = mode_of(flags, rest);  \
    va_end(rest);                              \
    return REAL(name)(path, flags, mode);      \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                       \
  int name(int folder, const char* path, int flags, ...) { \
    REFUSE("open", EMFILE, -1);                            \
    va_list rest;                                          \
    va_start(rest, flags);                                 \
    const mode_t mode = mode_of(flags, rest);              \
    va_end(rest);                                          \
    return REAL(name)(folder, path, flags, mode);          \
  }
OPENAT(openat)
OPENAT(openat64)

FILE* fopen(const char* path, const char* mode) {
  REFUSE("open", EMFILE, NULL);
  return REAL(fopen)(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  REFUSE("open", EMFILE, NULL);
  return REAL(fopen64)(path, mode);
}

DIR* opendir(const char* path) {
  REFUSE("open", EMFILE, NULL);
  return REAL(opendir)(path);
}
