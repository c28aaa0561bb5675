#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gpu/driver/cuda_abi.h"

namespace gradrail::gpu {

/// NVIDIA's driver, loaded at run time. All calls of CUDA use it.
/// Threads  Any.
class Driver {
 public:
  /// The host's driver. The first call loads it; every later call returns the same result.
  /// Errors  FAILED_PRECONDITION: the driver is missing, too old or does not start; the message names the remedy.
  static absl::StatusOr<const Driver*> get();
  /// Whether this host has NVIDIA's library, whatever its calls return.
  static bool is_installed();
  /// Loads the library of this name or path.
  static absl::StatusOr<std::unique_ptr<const Driver>> load(const char* library);

  const cuda::Functions& api() const { return api_; }
  /// Newest interface of the driver: 13000 is CUDA 13.0.
  int version() const { return version_; }
  /// "13.0".
  std::string version_text() const;
  /// Number of devices after CUDA_VISIBLE_DEVICES; 0 if the driver finds none.
  int device_count() const;

  /// CUDA's own name of a result, "CUDA_ERROR_OUT_OF_MEMORY".
  std::string_view name_of(cuda::Result result) const;

 private:
  Driver() = default;
  // Called in this order. start() compares the version before cuInit, so that an old driver is named as the reason.
  absl::Status find_functions(const char* library);
  absl::Status start();

  // Set by load(), constant afterwards: any thread may call.
  cuda::Functions api_;
  int version_ = 0;
};

}  // namespace gradrail::gpu
