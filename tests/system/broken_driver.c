// A libcuda.so.1 that takes down whoever loads it: $GRADRAIL_BROKEN_DRIVER=crash, or exit.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void on_load(void) {
  const char* how = getenv("GRADRAIL_BROKEN_DRIVER");
  if (how != NULL && strcmp(how, "crash") == 0) abort();
  _exit(0);
}
