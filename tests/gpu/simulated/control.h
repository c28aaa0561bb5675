#pragma once

#include "gpu/driver/cuda_abi.h"

// The simulated libcuda's own functions: for tests, which find them by name, and for the simulated cuBLAS and NCCL,
// which are linked with it.

#define GRADRAIL_SIMULATED_CONTROL extern "C" __attribute__((visibility("default")))

/// Objects that exist and were not freed, counts of launches and copies, and the size of the last kernel.
struct SimulatedObjects {
  int allocations;
  int pins;
  int streams;
  int events;
  int modules;
  int contexts;
  int graphs;
  int started;          ///< all kernels, products and graphs that the host has started so far
  int pageable_copies;  ///< all copies of pageable memory so far: each one waits for its stream
  int last_blocks;      ///< of the kernel that the host has started last
  int last_block_threads;
};

/// From now on as with these words in GRADRAIL_SIMULATED_GPU; devices work again. To be called while nothing runs.
GRADRAIL_SIMULATED_CONTROL void gradrail_simulated_configure(const char* words);
GRADRAIL_SIMULATED_CONTROL void gradrail_simulated_objects(SimulatedObjects* objects);
/// Lets everything that hangs come to its end: what it still copies must be there until then.
GRADRAIL_SIMULATED_CONTROL void gradrail_simulated_release_hang();
/// 1 while some device hangs or has a launch that stalls.
GRADRAIL_SIMULATED_CONTROL int gradrail_simulated_hangs();

/// Called by a simulated NIC for each notice in the memory of the device that owns the address.
GRADRAIL_SIMULATED_CONTROL void gradrail_simulated_nic_wrote(const void* data);

/// Enqueues `operation(argument)` as a launch of its own. Returns the result of cuLaunchKernel. `release` gets the
/// argument when the operation cannot run any more, also after an error. A captured operation runs several times.
GRADRAIL_SIMULATED_CONTROL int gradrail_simulated_launch(CUstream_st* stream, void (*operation)(void*), void* argument,
                                                         void (*release)(void*));
/// 1 while its operations are recorded.
GRADRAIL_SIMULATED_CONTROL int gradrail_simulated_is_captured(CUstream_st* stream);
/// The calling thread's device, -1 without one.
GRADRAIL_SIMULATED_CONTROL int gradrail_simulated_current();
/// Makes everything on the stream's device fail from now on.
GRADRAIL_SIMULATED_CONTROL void gradrail_simulated_fail(CUstream_st* stream, int result);
/// The error of its device, 0 while it works.
GRADRAIL_SIMULATED_CONTROL int gradrail_simulated_error(CUstream_st* stream);
/// 1 when kernels may use all of the range: it lies in one current allocation, or is pinned.
GRADRAIL_SIMULATED_CONTROL int gradrail_simulated_is_usable(const void* data, size_t bytes);
