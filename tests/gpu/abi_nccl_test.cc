// gpu/reduce/nccl_abi.h against NCCL's header, while this file is compiled.
#include <gtest/gtest.h>

#include "gpu/reduce/nccl_abi.h"
#include "tests/gpu/abi.h"

#include <nccl.h>

namespace gradrail::gpu {
namespace {

#define GRADRAIL_SAME(result, name, parameters) \
  static_assert(same_for_a_call<decltype(nccl::Functions::name), decltype(&::name)>(), #name);
GRADRAIL_NCCL_FUNCTIONS(GRADRAIL_SAME)

static_assert(nccl::kSuccess == ncclSuccess && nccl::kInvalidUsage == ncclInvalidUsage);
static_assert(nccl::kInProgress == ncclInProgress && nccl::kFloat32 == ncclFloat32 && nccl::kAverage == ncclAvg);

TEST(Abi, IsThatOfTheNcclHeader) { SUCCEED(); }

}  // namespace
}  // namespace gradrail::gpu
