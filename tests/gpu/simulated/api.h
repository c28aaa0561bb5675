#pragma once

#include <functional>

#include "gpu/driver/cuda_abi.h"
#include "tests/gpu/simulated/machine.h"

// Shared by the files that define the driver's functions.

#define GRADRAIL_SIMULATED extern "C" __attribute__((visibility("default")))

// The functions are found by name: without a declaration from the list that gpu/ reads no compiler would notice
// parameters that are wrong.
namespace gradrail::gpu::cuda {
// A declaration has no place for parentheses. NOLINTNEXTLINE(bugprone-macro-parentheses)
#define GRADRAIL_DECLARE(name, parameters) GRADRAIL_SIMULATED Result name parameters;
GRADRAIL_CUDA_REQUIRED(GRADRAIL_DECLARE)
GRADRAIL_CUDA_OPTIONAL(GRADRAIL_DECLARE)
#undef GRADRAIL_DECLARE
}  // namespace gradrail::gpu::cuda

namespace gradrail::simulated {

namespace cuda = gpu::cuda;

inline cuda::Context context_of(Device* device) { return reinterpret_cast<cuda::Context>(device); }
inline Stream* stream_of(cuda::Stream stream) { return reinterpret_cast<Stream*>(stream); }

/// The thread's device, when it has one and that one still works; else the error, which the caller passes on.
struct Ready {
  Device* device = current_device();
  Result error() const { return device == nullptr ? cuda::kInvalidContext : device->error.load(); }
};

}  // namespace gradrail::simulated

namespace gradrail::simulated {

/// For calls that need no device: an error of earlier work, which CUDA reports through whichever call comes next.
inline Result late_error() {
  const Device* device = current_device();
  return device == nullptr ? cuda::kSuccess : device->error.load();
}

/// For calls that end an object: they do so on a device that failed as well, and then return the error of earlier work.
inline Result or_late_error(Result result) {
  const Result late = late_error();
  return late == cuda::kSuccess ? result : late;
}

/// `refused` on a stream that is captured, which spoils the capture. By default the call would have to wait, or would
/// connect the capture with another stream. The real driver permits some of these calls.
Result refuse_in_capture(Stream& stream, Result refused = cuda::kStreamCaptureUnsupported);
/// As the configuration has it for launches on a stream that is captured, which spoils the capture.
Result refuse_launch_in_capture(Stream& stream);

/// Enqueues on a stream an operation that does nothing when the device has failed before its turn.
void enqueue(Stream& stream, std::function<void()> operation);

}  // namespace gradrail::simulated
