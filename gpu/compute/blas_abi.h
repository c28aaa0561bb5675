#pragma once

#include "gpu/driver/cuda_abi.h"

struct cublasContext;  // global and named as cuBLAS's header names it

namespace gradrail::gpu::cublas {

using Status = int;
using Handle = cublasContext*;

inline constexpr Status kSuccess = 0;
inline constexpr Status kNotInitialized = 1;
inline constexpr Status kAllocFailed = 3;
inline constexpr int kNormal = 0;
inline constexpr int kTransposed = 1;
inline constexpr int kDefaultMath = 0;

/// Names of the symbols, the same in cuBLAS 11, 12 and 13; matrices column-major.
#define GRADRAIL_CUBLAS_REQUIRED(X)                                                                            \
  X(Status, cublasCreate_v2, (Handle * handle))                                                                \
  X(Status, cublasDestroy_v2, (Handle handle))                                                                 \
  X(Status, cublasGetVersion_v2, (Handle handle, int* version))                                                \
  X(Status, cublasSetStream_v2, (Handle handle, cuda::Stream stream))                                          \
  X(Status, cublasSetWorkspace_v2, (Handle handle, void* workspace, size_t bytes))                             \
  X(Status, cublasSetMathMode, (Handle handle, int mode))                                                      \
  X(Status, cublasSgemm_v2,                                                                                    \
    (Handle handle, int operation_a, int operation_b, int m, int n, int k, const float* alpha, const float* a, \
     int lda, const float* b, int ldb, const float* beta, float* c, int ldc))                                  \
  X(Status, cublasSgemv_v2,                                                                                    \
    (Handle handle, int operation, int m, int n, const float* alpha, const float* a, int lda, const float* x,  \
     int x_step, const float* beta, float* y, int y_step))

/// cuBLAS 11.4 and newer.
#define GRADRAIL_CUBLAS_OPTIONAL(X) X(const char*, cublasGetStatusName, (Status status))

struct Functions {
// A declaration has no place for parentheses. NOLINTNEXTLINE(bugprone-macro-parentheses)
#define GRADRAIL_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  GRADRAIL_CUBLAS_REQUIRED(GRADRAIL_DECLARE)
  GRADRAIL_CUBLAS_OPTIONAL(GRADRAIL_DECLARE)
#undef GRADRAIL_DECLARE
};

}  // namespace gradrail::gpu::cublas
