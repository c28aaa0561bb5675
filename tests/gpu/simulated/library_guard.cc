#include "tests/gpu/simulated/library_guard.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/gpu/simulated/memory_control.h"

namespace gradrail::simulated {
namespace {

/// Null until the driver is loaded: before that no address belongs to a device.
template <typename Function>
Function find(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return nullptr;
  return reinterpret_cast<Function>(dlsym(driver, name));
}

struct Seen {
  int fd = -1;
  ino_t file = 0;
};
thread_local std::vector<Seen> seen;  ///< of this thread: its next call comes after its caller could close them

}  // namespace

void stop(const char* call, const void* data, const char* why) {
  std::fprintf(stderr, "simulated GPU: %s at %p: %s\n", call, data, why);
  std::abort();
}

int device_of(const void* data) {
  const auto ask = find<decltype(&gradrail_simulated_device_of)>("gradrail_simulated_device_of");
  return ask == nullptr ? kHostMemory : ask(data);
}

void check_declared(const char* call, const void* data, size_t bytes, int declared) {
  if (bytes == 0) return;
  const int device = device_of(data);
  const auto* const last = static_cast<const char*>(data) + bytes - 1;
  if (device_of(last) != device) stop(call, last, "the range leaves its device");
  if (device == kHostMemory) {
    if (declared != kHostMemory) stop(call, data, "host memory was declared as a GPU's");
    return;
  }
  if (declared == kHostMemory) stop(call, data, "GPU memory was not declared");
  if (declared != kAnyDevice && declared != device) stop(call, data, "GPU memory was declared as another device's");
  const auto usable = find<decltype(&gradrail_simulated_is_usable)>("gradrail_simulated_is_usable");
  if (usable(data, bytes) == 0) stop(call, data, "GPU memory that is not (all) allocated");
}

void check_dma_buf(int fd, const void* data) {
  struct stat file {};
  if (fstat(fd, &file) != 0) stop("dma-buf", data, "the descriptor is not open");
  const auto ask = find<decltype(&gradrail_simulated_file_of)>("gradrail_simulated_file_of");
  if (ask == nullptr || file.st_ino != ask(data)) stop("dma-buf", data, "the descriptor is of other memory");
  seen.push_back({fd, file.st_ino});
}

void check_descriptors(int fd) {
  for (const Seen& each : seen) {
    struct stat file {};
    const bool open = each.fd != fd && fstat(each.fd, &file) == 0 && file.st_ino == each.file;
    if (open) stop("dma-buf", nullptr, "its descriptor is still open after the registration");
  }
  seen.clear();
}

}  // namespace gradrail::simulated
