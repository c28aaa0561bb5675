#pragma once

#include <sys/types.h>

#include <cstddef>

namespace gradrail::simulated {

// Checks of the stand-ins for CUDA-aware network libraries: the stated kind of an address against its real kind. An
// error stops the process, because a library would take the address for host memory and fail elsewhere, if at all.

inline constexpr int kHostMemory = -1;

/// The simulated device that holds the address, or kHostMemory.
int device_of(const void* data);

/// `declared` is the device that the caller of the library named, or kHostMemory; any device where the interface has
/// none: kAnyDevice.
inline constexpr int kAnyDevice = -2;
void check_declared(const char* call, const void* data, size_t bytes, int declared);

/// The descriptor stands for the allocation that holds `data`; it must be closed before this thread's next
/// check_descriptors().
void check_dma_buf(int fd, const void* data);
/// But `fd`, which the caller may have been given anew.
void check_descriptors(int fd = -1);

[[noreturn]] void stop(const char* call, const void* data, const char* why);

}  // namespace gradrail::simulated
