#include "gpu/driver/library.h"

#include <dlfcn.h>

#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail::gpu {

absl::StatusOr<Library> Library::open(absl::Span<const char* const> names) {
  // The handle is never closed: static tables hold functions of the library until the process ends.
  std::vector<std::string> reasons;
  for (const char* name : names) {
    // RTLD_LOCAL: a program that links another version of the same library still uses its own version.
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return Library(handle, name);
    // The error lists all reasons: the first is usually "no such file", and a later one is the real obstacle.
    reasons.emplace_back(dlerror());
  }
  return absl::NotFoundError(fmt::format("{}", fmt::join(reasons, "; ")));
}

void* Library::symbol(const char* name) const { return dlsym(handle_, name); }

}  // namespace gradrail::gpu
