#include "transport/cuda_driver.h"

#include <dlfcn.h>

namespace gradrail::transport {

bool has_cuda_driver() {
  // The library is never closed: the users of the driver have it open all the time.
  static const bool found = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr;
  return found;
}

}  // namespace gradrail::transport
