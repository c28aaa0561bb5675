// Preloaded: an unmapped page below each workspace of oneDNN, page-aligned memory from posix_memalign(). A signal frame
// that the kernel writes below such a workspace ends the process at once, instead of damaging other objects.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { kPage = 4096, kSlots = 4096 };

void __libc_free(void* memory);
void* __libc_memalign(size_t alignment, size_t bytes);

static struct {
  char* memory;  // NULL: the slot is free
  size_t bytes;
} slots[kSlots];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int last_slot = 0;  // one beyond the highest that was in use

static int keep(char* memory, size_t bytes) {
  pthread_mutex_lock(&mutex);
  int slot = 0;
  while (slot < kSlots && slots[slot].memory != NULL) ++slot;
  if (slot < kSlots) {
    slots[slot].memory = memory;
    slots[slot].bytes = bytes;
    if (slot >= last_slot) last_slot = slot + 1;
  }
  pthread_mutex_unlock(&mutex);
  return slot < kSlots;
}

static size_t forget(const char* memory) {
  size_t bytes = 0;
  pthread_mutex_lock(&mutex);
  for (int slot = 0; slot < last_slot && bytes == 0; ++slot) {
    if (slots[slot].memory != memory) continue;
    bytes = slots[slot].bytes;
    slots[slot].memory = NULL;
  }
  pthread_mutex_unlock(&mutex);
  return bytes;
}

int posix_memalign(void** result, size_t alignment, size_t bytes) {
  if (alignment == kPage && bytes > 0) {
    const size_t whole = (bytes + kPage - 1) / kPage * kPage;
    char* const base = mmap(NULL, kPage + whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return ENOMEM;
    if (mprotect(base, kPage, PROT_NONE) == 0 && keep(base + kPage, whole)) {
      *result = base + kPage;
      return 0;
    }
    munmap(base, kPage + whole);
  }
  void* const memory = __libc_memalign(alignment, bytes);
  if (memory == NULL) return ENOMEM;
  *result = memory;
  return 0;
}

void free(void* memory) {
  if (memory == NULL) return;
  const size_t bytes = (uintptr_t)memory % kPage == 0 ? forget(memory) : 0;
  if (bytes > 0) {
    munmap((char*)memory - kPage, kPage + bytes);
  } else {
    __libc_free(memory);
  }
}
