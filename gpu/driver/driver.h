#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gpu/driver/cuda_abi.h"

namespace gradrail::gpu {

/// NVIDIA's driver, loaded at run time. All uses of CUDA go through it.
/// Threads  Any.
class Driver {
 public:
  /// The host's driver. The first call loads it; every later call returns the same result.
  /// Errors  FAILED_PRECONDITION: the driver is missing, too old or does not start; the message names the remedy.
  static absl::StatusOr<const Driver*> get();
  /// Whether this host has NVIDIA's library at all, whatever it answers.
  static bool is_installed();
  /// From a library of this name or path.
  static absl::StatusOr<std::unique_ptr<const Driver>> load(const char* library);

  const cuda::Functions& api() const { return api_; }
  /// 13000 is CUDA 13.0: the newest interface that the driver speaks.
  int version() const { return version_; }
  /// "13.0".
  std::string version_text() const;
  /// 0 with a driver that sees no device.
  /// After CUDA_VISIBLE_DEVICES.
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
