// gpu/compute/blas_abi.h against the toolkit's header, while this file is compiled.
#include <gtest/gtest.h>

#include "gpu/compute/blas_abi.h"
#include "tests/gpu/abi.h"

#include <cublas_v2.h>

namespace gradrail::gpu {
namespace {

#define GRADRAIL_SAME(result, name, parameters) \
  static_assert(same_for_a_call<decltype(cublas::Functions::name), decltype(&::name)>(), #name);
GRADRAIL_CUBLAS_REQUIRED(GRADRAIL_SAME)
GRADRAIL_CUBLAS_OPTIONAL(GRADRAIL_SAME)

static_assert(cublas::kSuccess == CUBLAS_STATUS_SUCCESS && cublas::kNotInitialized == CUBLAS_STATUS_NOT_INITIALIZED);
static_assert(cublas::kAllocFailed == CUBLAS_STATUS_ALLOC_FAILED);
static_assert(cublas::kNormal == CUBLAS_OP_N && cublas::kTransposed == CUBLAS_OP_T);
static_assert(cublas::kDefaultMath == CUBLAS_DEFAULT_MATH);

TEST(Abi, IsThatOfTheToolkitsCublasHeader) { SUCCEED(); }

}  // namespace
}  // namespace gradrail::gpu
