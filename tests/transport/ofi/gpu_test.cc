// With a libfabric that looks as if it were built with CUDA (tests/gpu/simulated/hmem_ofi.cc).
#include <gmock/gmock.h>

#include <cstdlib>

#include "transport/ofi/context.h"

namespace gradrail::transport::ofi {
namespace {

using ::testing::HasSubstr;

GpuTransferSupport ways_of_tcp() {
  const auto context = open({.ofi_provider = "tcp"});
  if (!context.ok()) throw std::runtime_error(context.status().ToString());
  return (*context)->capabilities().gpu;
}

TEST(OfiGpu, before_1_20_by_the_module_alone) {
  const GpuTransferSupport ways = ways_of_tcp();
  EXPECT_TRUE(ways.takes(NicGpuTransfer::peer_memory)) << ways.why_no_peer_memory;
  EXPECT_THAT(ways.why_no_dma_buf, HasSubstr("1.20"));
}

TEST(OfiGpu, a_build_with_older_headers_says_what_to_do) {
  setenv("GRADRAIL_SIMULATED_LIBFABRIC", "1.20", 1);
  const GpuTransferSupport ways = ways_of_tcp();
  unsetenv("GRADRAIL_SIMULATED_LIBFABRIC");
  EXPECT_TRUE(ways.takes(NicGpuTransfer::peer_memory)) << ways.why_no_peer_memory;
  EXPECT_THAT(ways.why_no_dma_buf, HasSubstr("rebuild it"));
}

TEST(OfiGpu, a_provider_that_would_copy_through_the_host_takes_none) {
  setenv("GRADRAIL_SIMULATED_P2P", "refused", 1);
  const GpuTransferSupport ways = ways_of_tcp();
  unsetenv("GRADRAIL_SIMULATED_P2P");
  EXPECT_THAT(ways.why_no_peer_memory, HasSubstr("would copy GPU memory through the host"));
  EXPECT_THAT(ways.why_no_dma_buf, HasSubstr("would copy GPU memory through the host"));
}

}  // namespace
}  // namespace gradrail::transport::ofi
