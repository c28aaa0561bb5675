// A libcuda.so.1 that ends each process that loads it: $GRADRAIL_BROKEN_DRIVER=crash, or exit.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((constructor)) static void on_load(void) {
  const char* how = getenv("GRADRAIL_BROKEN_DRIVER");
  if (how != NULL && strcmp(how, "crash") == 0) abort();
  syscall(SYS_exit_group, 0);  // the thread sanitizer has something to say of an _exit() while a library is loaded
}
