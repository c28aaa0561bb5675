// With a UCX that looks as if it were built with CUDA (tests/gpu/simulated/hmem_ucx.cc).
#include <gmock/gmock.h>

#include "conformance/pattern.h"
#include "conformance/place.h"
#include "conformance/target.h"
#include "transport/ucx/context.h"
#include "transport/ucx/memory_region.h"

namespace gradrail::conformance {
namespace {

using ::testing::HasSubstr;
using transport::ucx::RegionKey;

constexpr size_t kBytes = 1000;  // goes eagerly wherever nobody says otherwise

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
    EXPECT_THAT(side.await(Kind::peer_lost).cause.ToString(), HasSubstr("did not come by rendezvous"));
  });
  Side side(ucx);
  Place target(side, Where::gpu, kBytes, Access::remote_write);
  target.fill(0, kBytes, 2);
  peer->channel().send(side.listen());
  peer->channel().send(target.key());
  EXPECT_THAT(side.await(Kind::peer_lost).cause.ToString(), HasSubstr("did not come by rendezvous"));
  EXPECT_FALSE(side.has(Kind::put_arrived));
  EXPECT_TRUE(has_pattern(target.read(0, kBytes), 2));
  peer->join();
}

}  // namespace
}  // namespace gradrail::conformance
