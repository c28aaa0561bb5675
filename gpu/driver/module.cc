#include "gpu/driver/module.h"

#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/kernels/image.h"

namespace gradrail::gpu {
namespace {

/// The image does not fit device or driver, which an update can change. All other errors are those of the device.
bool is_refused_image(cuda::Result result) {
  return result == cuda::kInvalidImage || result == cuda::kNoBinaryForGpu || result == cuda::kInvalidPtx ||
         result == cuda::kUnsupportedPtxVersion || result == cuda::kJitCompilerNotFound;
}

/// The first with the instructions that the kernels of every build use.
constexpr int kOldestComputeMajor = 8;

constexpr const char* kKernels[] = {
#define GRADRAIL_KERNEL(name, Argument) #name,
#include "gpu/kernels/list.inc"
#undef GRADRAIL_KERNEL
};

std::string remedy(const PrimaryContext& context, cuda::Result result) {
  const std::string_view image = kernel_image_description();
  const DeviceInfo& device = context.device();
  if (device.compute_major < kOldestComputeMajor) {
    return fmt::format("the device is sm_{}{}, older than gradrail supports (sm_{}0): use another, or the CPUs",
                       device.compute_major, device.compute_minor, kOldestComputeMajor);
  }
  // A build without nvcc holds a text in place of an image.
  if (image.starts_with(kNoKernels)) return std::string(image);
  if (result == cuda::kJitCompilerNotFound) {
    return "the driver lacks its compiler: install libnvidia-ptxjitcompiler, or add it to the container "
           "(NVIDIA_DRIVER_CAPABILITIES=compute,utility)";
  }
  return fmt::format("this build has {}, the device is sm_{}{}, the driver supports CUDA {}: update the driver", image,
                     device.compute_major, device.compute_minor, context.driver().version_text());
}

absl::Status refusal(const PrimaryContext& context, cuda::Result result) {
  absl::Status status = context.status(result, "loading kernels");
  if (!is_refused_image(result)) return status;
  return absl::FailedPreconditionError(fmt::format("{}: {}", message_of(status), remedy(context, result)));
}

}  // namespace

absl::Status check_kernels(const Driver& driver) {
  if (driver.version() >= kernel_image_version()) return absl::OkStatus();
  const int major = kernel_image_version() / 1000;
  return absl::FailedPreconditionError(
      fmt::format("the kernels of this build require a driver for CUDA {}.0 (driver {}), and this one supports CUDA "
                  "{}: update the driver, or build with nvcc {}",
                  major, major >= 13 ? 580 : 525, driver.version_text(), driver.version() / 1000));
}

absl::StatusOr<Module> Module::load(SharedContext context) {
  // The check precedes the driver's load of the image: an older driver could also fail later, or name another cause.
  if (const absl::Status fits = check_kernels(context->driver()); !fits.ok())
    return absl::FailedPreconditionError(fmt::format("{}: {}", context->label(), message_of(fits)));
  context->make_current();
  cuda::Module handle = nullptr;
  // The driver chooses the code of this device from the image, or compiles its PTX (seconds, once per user and driver).
  const cuda::Result result = context->api().cuModuleLoadData(&handle, kernel_image().data());
  if (result != cuda::kSuccess) return refusal(*context, result);
  Module module(std::move(context), handle);
  for (const char* const name : kKernels) GRADRAIL_RETURN_IF_ERROR(module.look_up(name));
  return module;
}

absl::Status Module::look_up(const char* kernel) {
  cuda::Function function = nullptr;
  const cuda::Result result = context_->api().cuModuleGetFunction(&function, handle_, kernel);
  if (result == cuda::kSuccess) functions_.emplace(kernel, function);
  return context_->status(result, fmt::format("looking for kernel {}", kernel));
}

Module::Module(Module&& other) noexcept
    : context_(std::move(other.context_)),
      handle_(std::exchange(other.handle_, nullptr)),
      functions_(std::move(other.functions_)) {}

Module::~Module() {
  if (handle_ == nullptr || context_->is_abandoned()) return;
  context_->make_current();
  context_->api().cuModuleUnload(handle_);
}

absl::StatusOr<cuda::Function> Module::find(std::string_view kernel) const {
  if (const auto known = functions_.find(kernel); known != functions_.end()) return known->second;
  return absl::InternalError(fmt::format("{}: this build has no kernel {}", context_->label(), kernel));
}

}  // namespace gradrail::gpu
