#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gpu/driver/device.h"

namespace gradrail::gpu {

/// Errors  FAILED_PRECONDITION: the driver is older than the kernels of this build.
absl::Status check_kernels(const Driver& driver);

/// The kernels of this build on one device.
class Module {
 public:
  /// Loads each kernel. A driver loads one when it is looked up (CUDA_MODULE_LOADING=LAZY) and may wait for the
  /// device, where a kernel may already wait for another thread of this process.
  /// Errors  FAILED_PRECONDITION: the build has none, or none for this device; others as to_status().
  static absl::StatusOr<Module> load(SharedContext context);
  Module(Module&& other) noexcept;
  Module& operator=(Module&&) = delete;
  ~Module();

  /// Errors  INTERNAL: no kernel of this name.
  /// Names are those of gpu/kernels/list.inc.
  absl::StatusOr<cuda::Function> find(std::string_view kernel) const;

 private:
  Module(SharedContext context, cuda::Module handle) : context_(std::move(context)), handle_(handle) {}
  absl::Status look_up(const char* kernel);

  SharedContext context_;
  cuda::Module handle_ = nullptr;
  std::map<std::string, cuda::Function, std::less<>> functions_;
};

}  // namespace gradrail::gpu
