// A host with a working driver, but without working cuBLAS and NCCL: tests/gpu/CMakeLists.txt makes such a folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/status.h"
#include "gpu/compute/blas.h"
#include "gpu/reduce/nccl.h"
#include "gpu/reduce/tower_sum.h"
#include "tests/gpu/simulation.h"

namespace gradrail::gpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string words(const absl::Status& status) { return std::string(message_of(status)); }

class MissingLibraries : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Simulation::is_here()) << "LD_LIBRARY_PATH is not what ctest sets";
    setenv("GRADRAIL_CUDA_LIBRARIES", "/nowhere", 1);  // in place of the folders of this host
  }
};

TEST_F(MissingLibraries, EachIsAReasonWithARemedy) {
  const absl::Status blas = blas_library().status(), nccl = nccl_library().status();
  EXPECT_EQ(blas.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(words(blas),
              AllOf(HasSubstr("no cuBLAS"), HasSubstr("libcublas.so.13"), HasSubstr("GRADRAIL_CUDA_LIBRARIES")));
  EXPECT_EQ(nccl.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(words(nccl), AllOf(HasSubstr("no NCCL"), HasSubstr("install")));
}

TEST_F(MissingLibraries, OperationsThatNeedNoneWorkAndProductsSayWhatIsMissing) {
  Simulation::configure("devices=2");
  const std::unique_ptr<Compute> compute = *open_device(0);
  const auto memory = compute->allocate(400);
  const std::vector<float> ones(10, 1.0f);
  compute->upload((*memory)->data(), ones.data(), 40);
  const float* sources[] = {(*memory)->as<float>(), (*memory)->as<float>()};
  compute->sum(sources, 10, 1.0f, (*memory)->as<float>());
  std::vector<float> back(10);
  ASSERT_TRUE(compute->wait(compute->download(back.data(), (*memory)->data(), 40)).ok());
  EXPECT_EQ(back, std::vector<float>(10, 2.0f));
  float* const x = (*memory)->as<float>();
  compute->product({.m = 2, .k = 2, .n = 2}, x, x + 10, x + 20);
  const absl::Status refused = compute->finish();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(words(refused), HasSubstr("no cuBLAS"));
}

TEST_F(MissingLibraries, TowersAreAveragedByTheHostUnlessNcclWasAskedFor) {
  Simulation::configure("devices=2");
  const std::unique_ptr<Compute> first = *open_device(0), second = *open_device(1);
  EXPECT_EQ((*tower_sum({first.get(), second.get()}))->name(), "host");
  const absl::Status refused = tower_sum({first.get(), second.get()}, {.reduce = Reduce::nccl}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(words(refused), HasSubstr("no NCCL"));
}

}  // namespace
}  // namespace gradrail::gpu
