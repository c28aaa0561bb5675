#pragma once

#include <cstddef>
#include <string_view>

#include "absl/types/span.h"

namespace gradrail::gpu {

/// Prefix of an image without kernels; the reason follows it. A driver refuses such an image.
inline constexpr std::string_view kNoKernels = "gradrail was built without";

/// The kernels of this build, as cuModuleLoadData takes them: a fatbin, or the words why there is none.
absl::Span<const unsigned char> kernel_image();

/// The oldest CUDA that a driver must support for this image, as Driver::version(): the major version of nvcc. 0: there
/// is no image.
int kernel_image_version();

/// "sm_80, sm_90, sm_100, PTX compute_80, compute_100", or why there are none.
std::string_view kernel_image_description();

}  // namespace gradrail::gpu
