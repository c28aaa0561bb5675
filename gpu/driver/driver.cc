#include "gpu/driver/driver.h"

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/driver/library.h"
#include "gpu/driver/native_error.h"

namespace gradrail::gpu {
namespace {

/// CUDA 12.0 (driver 525) is the first to run code for sm_90; its interface has everything that is required here.
constexpr int kOldestVersion = 12000;

constexpr const char* kLibrary = "libcuda.so.1";

std::string version_words(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

absl::StatusOr<const Driver*> Driver::get() {
  // The first caller loads, and C++ makes the others wait. A failure is stored: all parts then report the same reason.
  static const absl::StatusOr<std::unique_ptr<const Driver>> driver = load(kLibrary);
  if (!driver.ok()) return driver.status();
  return driver->get();
}

bool Driver::is_installed() { return Library::open({kLibrary}).ok(); }

absl::StatusOr<std::unique_ptr<const Driver>> Driver::load(const char* library) {
  std::unique_ptr<Driver> driver(new Driver);
  GRADRAIL_RETURN_IF_ERROR(driver->find_functions(library));
  GRADRAIL_RETURN_IF_ERROR(driver->start());
  return driver;
}

absl::Status Driver::find_functions(const char* name) {
  // The library is opened at run time and not at link time: one program runs on hosts with and without a driver.
  const absl::StatusOr<Library> library = Library::open({name});
  if (!library.ok()) {
    return absl::FailedPreconditionError(
        fmt::format("no NVIDIA driver ({}): install it, or start the container with access to the GPUs of the host",
                    message_of(library.status())));
  }
  // The check precedes the version, which is itself the result of one of these functions.
  const char* missing = nullptr;
#define GRADRAIL_FIND(name, parameters) api_.name = reinterpret_cast<decltype(api_.name)>(library->symbol(#name));
#define GRADRAIL_NEED(name, parameters) \
  if (api_.name == nullptr && missing == nullptr) missing = #name;
  GRADRAIL_CUDA_REQUIRED(GRADRAIL_FIND)
  GRADRAIL_CUDA_OPTIONAL(GRADRAIL_FIND)
  GRADRAIL_CUDA_REQUIRED(GRADRAIL_NEED)
#undef GRADRAIL_FIND
#undef GRADRAIL_NEED
  if (missing == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{} has no {}: the driver is too old, install one for CUDA {} or newer", library->name(), missing,
                  version_words(kOldestVersion)));
}

absl::Status Driver::start() {
  // The check precedes cuInit: the error of a driver that is too old must be its version, not the failure of cuInit.
  if (const cuda::Result result = api_.cuDriverGetVersion(&version_); result != cuda::kSuccess) {
    return start_error(*this, result);
  }
  if (version_ < kOldestVersion) {
    return absl::FailedPreconditionError(
        fmt::format("the NVIDIA driver supports CUDA {}, gradrail requires {} or newer (driver 525): update the driver",
                    version_text(), version_words(kOldestVersion)));
  }
  const cuda::Result result = api_.cuInit(0);
  // A host without a GPU is not a fault of the driver: find_device() reports it.
  if (result == cuda::kSuccess || result == cuda::kNoDevice) return absl::OkStatus();
  return start_error(*this, result);
}

int Driver::device_count() const {
  int count = 0;
  // cuInit may have ended with kNoDevice; the count then is an error, which counts as 0.
  return api_.cuDeviceGetCount(&count) == cuda::kSuccess ? count : 0;
}

std::string Driver::version_text() const { return version_words(version_); }

std::string_view Driver::name_of(cuda::Result result) const {
  const char* name = nullptr;
  if (api_.cuGetErrorName(result, &name) != cuda::kSuccess || name == nullptr) return "an unknown CUDA error";
  return name;
}

}  // namespace gradrail::gpu
