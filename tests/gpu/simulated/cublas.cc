#include <utility>
#include <vector>

#include "dnnl.h"
#include "gpu/compute/blas_abi.h"
#include "tests/gpu/simulated/control.h"

// cuBLAS for the simulated driver: products on the stream's thread.

struct cublasContext {
  CUstream_st* stream = nullptr;
  void* workspace = nullptr;
};

namespace gradrail::gpu::cublas {
// A declaration has no place for parentheses. NOLINTNEXTLINE(bugprone-macro-parentheses)
#define GRADRAIL_DECLARE(result, name, parameters) GRADRAIL_SIMULATED_CONTROL result name parameters;
GRADRAIL_CUBLAS_REQUIRED(GRADRAIL_DECLARE)
GRADRAIL_CUBLAS_OPTIONAL(GRADRAIL_DECLARE)
#undef GRADRAIL_DECLARE
}  // namespace gradrail::gpu::cublas

namespace {

using namespace gradrail::gpu;
using cublas::Handle;
using cublas::Status;

constexpr Status kInvalidValue = 7;
constexpr Status kExecutionFailed = 13;

struct Product {
  CUstream_st* stream;
  char operation_a, operation_b;
  int m, n, k;
  float alpha, beta;
  const float *a, *b;
  float* c;
  int lda, ldb, ldc;
};

struct VectorProduct {
  CUstream_st* stream;
  bool transposed;
  int m, n;
  float alpha, beta;
  const float *a, *x;
  float* y;
  int lda;
};

/// Columns of a matrix lie `stride` apart; the last one ends with its last element.
bool is_matrix(const float* data, int rows, int columns, int stride) {
  if (rows == 0 || columns == 0) return true;
  const size_t elements = static_cast<size_t>(columns - 1) * static_cast<size_t>(stride) + static_cast<size_t>(rows);
  return stride >= rows && gradrail_simulated_is_usable(data, elements * sizeof(float)) != 0;
}

bool is_usable(const Product& p) {
  const bool ta = p.operation_a == 'T', tb = p.operation_b == 'T';
  return is_matrix(p.a, ta ? p.k : p.m, ta ? p.m : p.k, p.lda) &&
         is_matrix(p.b, tb ? p.n : p.k, tb ? p.k : p.n, p.ldb) && is_matrix(p.c, p.m, p.n, p.ldc);
}

bool is_usable(const VectorProduct& p) {
  return is_matrix(p.a, p.m, p.n, p.lda) && is_matrix(p.x, p.transposed ? p.m : p.n, 1, p.m + p.n) &&
         is_matrix(p.y, p.transposed ? p.n : p.m, 1, p.m + p.n);
}

/// Whether the product may run. A graph runs long after its capture, and its memory may have been freed meanwhile.
template <typename Argument>
bool begin(const Argument& argument) {
  if (gradrail_simulated_error(argument.stream) != cuda::kSuccess) return false;
  if (is_usable(argument)) return true;
  gradrail_simulated_fail(argument.stream, cuda::kIllegalAddress);
  return false;
}

void run_product(void* argument) {
  const auto* const p = static_cast<const Product*>(argument);
  if (!begin(*p)) return;
  // Column-major is the transpose of row-major: the operands change places.
  const dnnl_status_t status = dnnl_sgemm(p->operation_b, p->operation_a, p->n, p->m, p->k, p->alpha, p->b, p->ldb,
                                          p->a, p->lda, p->beta, p->c, p->ldc);
  if (status != dnnl_success) gradrail_simulated_fail(p->stream, cuda::kLaunchFailed);
}

void run_vector_product(void* argument) {
  const auto* const p = static_cast<const VectorProduct*>(argument);
  if (!begin(*p)) return;
  const size_t rows = static_cast<size_t>(p->m), columns = static_cast<size_t>(p->n), lda = static_cast<size_t>(p->lda);
  std::vector<double> sums(p->transposed ? columns : rows, 0.0);
  for (size_t j = 0; j < columns; ++j) {
    for (size_t i = 0; i < rows; ++i) {
      const double entry = p->a[j * lda + i];
      if (p->transposed)
        sums[j] += entry * p->x[i];
      else
        sums[i] += entry * p->x[j];
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    const double before = p->beta == 0.0f ? 0.0 : p->beta * p->y[i];
    p->y[i] = static_cast<float>(p->alpha * sums[i] + before);
  }
}

template <typename Argument>
Status launch(Handle handle, void (*operation)(void*), Argument argument) {
  CUstream_st* const stream = argument.stream;
  // cuBLAS itself would allocate here.
  if (handle->workspace == nullptr && gradrail_simulated_is_captured(stream) != 0) return kExecutionFailed;
  const int result = gradrail_simulated_launch(stream, operation, new Argument(std::move(argument)),
                                               [](void* owned) { delete static_cast<Argument*>(owned); });
  return result == cuda::kSuccess ? cublas::kSuccess : kExecutionFailed;
}

}  // namespace

GRADRAIL_SIMULATED_CONTROL Status cublasCreate_v2(Handle* handle) {
  if (gradrail_simulated_current() < 0) return cublas::kNotInitialized;
  *handle = new cublasContext;
  return cublas::kSuccess;
}

GRADRAIL_SIMULATED_CONTROL Status cublasDestroy_v2(Handle handle) {
  delete handle;
  return cublas::kSuccess;
}

GRADRAIL_SIMULATED_CONTROL Status cublasGetVersion_v2(Handle, int* version) {
  *version = 130000;
  return cublas::kSuccess;
}

GRADRAIL_SIMULATED_CONTROL Status cublasSetStream_v2(Handle handle, cuda::Stream stream) {
  handle->stream = stream;
  handle->workspace = nullptr;  // as cuBLAS: the default one again
  return cublas::kSuccess;
}

GRADRAIL_SIMULATED_CONTROL Status cublasSetWorkspace_v2(Handle handle, void* workspace, size_t bytes) {
  // Aligned as the documentation of cuBLAS demands.
  if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0 || gradrail_simulated_is_usable(workspace, bytes) == 0)
    return kInvalidValue;
  handle->workspace = workspace;
  return cublas::kSuccess;
}

GRADRAIL_SIMULATED_CONTROL Status cublasSetMathMode(Handle, int) { return cublas::kSuccess; }

GRADRAIL_SIMULATED_CONTROL const char* cublasGetStatusName(Status status) {
  return status == kInvalidValue ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS_EXECUTION_FAILED";
}

GRADRAIL_SIMULATED_CONTROL Status cublasSgemm_v2(Handle handle, int operation_a, int operation_b, int m, int n, int k,
                                                 const float* alpha, const float* a, int lda, const float* b, int ldb,
                                                 const float* beta, float* c, int ldc) {
  const bool ta = operation_a == cublas::kTransposed, tb = operation_b == cublas::kTransposed;
  const Product product{handle->stream, ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, *alpha, *beta, a, b, c, lda, ldb, ldc};
  if (!is_usable(product)) return kInvalidValue;
  if (m == 0 || n == 0 || k == 0) return cublas::kSuccess;  // as cuBLAS, also with beta 0: c stays as it is
  return launch(handle, run_product, product);
}

GRADRAIL_SIMULATED_CONTROL Status cublasSgemv_v2(Handle handle, int operation, int m, int n, const float* alpha,
                                                 const float* a, int lda, const float* x, int x_step, const float* beta,
                                                 float* y, int y_step) {
  const bool transposed = operation == cublas::kTransposed;
  const VectorProduct product{handle->stream, transposed, m, n, *alpha, *beta, a, x, y, lda};
  if (x_step != 1 || y_step != 1 || !is_usable(product)) return kInvalidValue;
  if (m == 0 || n == 0) return cublas::kSuccess;  // as cuBLAS, also with beta 0: y stays as it is
  return launch(handle, run_vector_product, product);
}
