#pragma once

#include <math.h>

#include "gpu/kernels/formats.h"

// Eight warps: as many blocks fit a multiprocessor as its registers allow, in fine steps.
#define GRADRAIL_KERNEL_BOUNDS __launch_bounds__(256)

namespace gradrail::gpu::kernels {

__device__ inline Count thread_index() { return static_cast<Count>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline Count thread_count() { return static_cast<Count>(gridDim.x) * blockDim.x; }

/// Calls visit(element) for each of this thread's single elements of a run.
template <typename Visit>
__device__ void for_singles(const Run& run, Visit visit) {
  const Count in_quads = 4 * run.quads;
  for (Count i = thread_index(); i < run.count - in_quads; i += thread_count()) {
    visit(i < run.head ? i : i + in_quads);
  }
}

/// Calls visit(quad) for each of this thread's quads of a run; quad 0 begins at element `head`.
template <typename Visit>
__device__ void for_quads(const Run& run, Visit visit) {
  for (Count q = thread_index(); q < run.quads; q += thread_count()) visit(q);
}

/// Divides `value` and returns the remainder. Nearly all values fit 32 bits, where division takes a fourth of the time.
__device__ inline Bits32 split(Count& value, Bits32 divisor) {
  if (value >> 32 == 0) {
    const Bits32 small = static_cast<Bits32>(value);
    value = small / divisor;
    return small % divisor;
  }
  const Bits32 rest = static_cast<Bits32>(value % divisor);
  value /= divisor;
  return rest;
}

}  // namespace gradrail::gpu::kernels
