#pragma once

#include <functional>

#include "gpu/driver/cuda_abi.h"

namespace gradrail::simulated {

struct Kernel;

/// Null when the build has no kernel of this name.
const Kernel* find_kernel(const char* name);

/// The launch, with the arguments copied as the driver does. Called with the number of blocks and of threads in each.
/// Returns the error of an access that is misaligned, or outside of every allocation.
std::function<gpu::cuda::Result(unsigned, unsigned)> bind_kernel(gpu::cuda::Function function, void** arguments);

}  // namespace gradrail::simulated
