#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gpu/driver/device.h"

namespace gradrail::gpu {

/// The kernels of this build on one device.
class Module {
 public:
  /// Errors  FAILED_PRECONDITION: the build has none, or none for this device; others as to_status().
  static absl::StatusOr<Module> load(SharedContext context);
  Module(Module&& other) noexcept;
  Module& operator=(Module&&) = delete;
  ~Module();

  /// Errors  INTERNAL: no kernel of this name.
  /// Names are those of gpu/kernels/list.inc. The first call for a name asks the driver.
  /// Threads  One owner: the table of known names is not locked.
  absl::StatusOr<cuda::Function> find(std::string_view kernel);

 private:
  Module(SharedContext context, cuda::Module handle) : context_(std::move(context)), handle_(handle) {}
  SharedContext context_;
  cuda::Module handle_ = nullptr;
  std::map<std::string, cuda::Function, std::less<>> functions_;
};

}  // namespace gradrail::gpu
