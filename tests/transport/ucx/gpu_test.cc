// With a UCX that looks as if it were built with CUDA (tests/gpu/simulated/hmem_ucx.cc).
#include <gmock/gmock.h>

#include <cstdlib>

#include "conformance/pattern.h"
#include "conformance/place.h"
#include "conformance/target.h"
#include "transport/ucx/context.h"
#include "transport/ucx/memory_region.h"

namespace gradrail::conformance {
namespace {

using ::testing::HasSubstr;
using transport::ucx::RegionKey;

constexpr size_t kBytes = 1000;  // goes eagerly by default

/// The sender believes that the region is the host's, and sends as one does then: no processor may write it to a GPU.
TEST(UcxGpu, a_put_that_does_not_come_by_rendezvous_is_refused) {
  const transport::Transport ucx = {.name = "ucx", .purpose = "", .open = &transport::ucx::open};
  const auto peer = start_peer({&ucx, Peers::threads}, [](Side& side, Channel& channel) {
    Connection* const connection = side.connect(channel.receive());
    absl::StatusOr<RegionKey> key = RegionKey::parse(channel.receive());
    ASSERT_TRUE(key.ok()) << key.status();
    ASSERT_EQ(key->kind, MemoryKind::cuda);
    key->kind = MemoryKind::host;
    Place source(side, Where::host, kBytes, Access::local);
    source.fill(0, kBytes, 1);
    const auto region = connection->import(key->encode());
    ASSERT_TRUE(region.ok()) << region.status();
    side.put(connection, source.slice(0, kBytes), {*region, 0}, {.immediate = 1});
    EXPECT_THAT(side.await(Kind::peer_lost).cause.ToString(), HasSubstr("did not arrive by rendezvous"));
  });
  Side side(ucx);
  Place target(side, Where::gpu, kBytes, Access::remote_write);
  target.fill(0, kBytes, 2);
  peer->channel().send(side.listen());
  peer->channel().send(target.key());
  EXPECT_THAT(side.await(Kind::peer_lost).cause.ToString(), HasSubstr("did not arrive by rendezvous"));
  EXPECT_FALSE(side.has(Kind::put_arrived));
  EXPECT_TRUE(has_pattern(target.read(0, kBytes), 2));
  peer->join();
}

class SimulatedRdma {
 public:
  explicit SimulatedRdma(const char* word) { setenv("GRADRAIL_SIMULATED_RDMA", word, 1); }
  ~SimulatedRdma() { unsetenv("GRADRAIL_SIMULATED_RDMA"); }
};

TEST(UcxGpu, without_an_rdma_device_ucx_would_copy_and_takes_none) {
  const SimulatedRdma simulated("none");
  const auto context = transport::ucx::open({});
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_THAT((*context)->capabilities().gpu.why_no_peer_memory, HasSubstr("would copy GPU memory through the host"));
}

TEST(UcxGpu, memory_that_no_device_takes_is_refused_though_ucx_does_not_mind) {
  const SimulatedRdma simulated("host");
  const transport::Transport ucx = {.name = "ucx", .purpose = "", .open = &transport::ucx::open};
  Side side(ucx);
  const Place host(side, Where::host, kBytes, Access::local);
  try {
    const Place gpu(side, Where::gpu, kBytes, Access::local);
    FAIL() << "registered";
  } catch (const Broken& refused) {
    EXPECT_THAT(refused.what(), HasSubstr("FAILED_PRECONDITION: ucx: no RDMA device registers"));
  }
}

}  // namespace
}  // namespace gradrail::conformance
