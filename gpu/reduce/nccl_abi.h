#pragma once

#include <cstddef>

#include "gpu/driver/cuda_abi.h"

struct ncclComm;  // global and named as NCCL's header names it

namespace gradrail::gpu::nccl {

using Result = int;
using Communicator = ncclComm*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidUsage = 5;
inline constexpr Result kInProgress = 7;
inline constexpr int kFloat32 = 7;
inline constexpr int kAverage = 4;

/// Names of the symbols; all exist since NCCL 2.10, the first with averages.
#define GRADRAIL_NCCL_FUNCTIONS(X)                                                                 \
  X(Result, ncclGetVersion, (int* version))                                                        \
  X(Result, ncclCommInitAll, (Communicator * communicators, int count, const int* ordinals))       \
  X(Result, ncclCommDestroy, (Communicator communicator))                                          \
  X(Result, ncclCommAbort, (Communicator communicator))                                            \
  X(Result, ncclCommGetAsyncError, (Communicator communicator, Result * error))                    \
  X(Result, ncclGroupStart, ())                                                                    \
  X(Result, ncclGroupEnd, ())                                                                      \
  X(const char*, ncclGetErrorString, (Result result))                                              \
  X(Result, ncclAllReduce,                                                                         \
    (const void* from, void* to, size_t count, int type, int operation, Communicator communicator, \
     cuda::Stream stream))

struct Functions {
// A declaration has no place for parentheses. NOLINTNEXTLINE(bugprone-macro-parentheses)
#define GRADRAIL_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  GRADRAIL_NCCL_FUNCTIONS(GRADRAIL_DECLARE)
#undef GRADRAIL_DECLARE
};

}  // namespace gradrail::gpu::nccl
