#include "conformance/pattern.h"
#include "conformance/target.h"

namespace gradrail::conformance {
namespace {

absl::StatusOr<std::byte*> map(Side& side, Connection* connection, RemoteRegion region) {
  absl::StatusOr<std::byte*> mapped = nullptr;
  const absl::Status status = side.post([&] {
    mapped = connection->map(region);
    return mapped.status();
  });
  if (!status.ok()) return status;
  return mapped;
}

TEST_P(Conformance, mapped_region_is_the_peers_memory) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const Target target = reach(side, channel);
    const auto mapped = map(side, target.connection, target.region);
    if (!side.context().capabilities().direct_map) {
      EXPECT_EQ(mapped.status().code(), absl::StatusCode::kUnimplemented) << mapped.status();
    } else {
      ASSERT_TRUE(mapped.ok()) << mapped.status();
      EXPECT_TRUE(has_pattern({*mapped, 10'000}, 1));
      fill_pattern({*mapped, 10'000}, 2);
    }
    // The notice of an empty put stands behind what was stored, as behind any earlier put.
    side.put(target.connection, {}, {target.region, 0}, {.immediate = 3});
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  Buffer& target = side.buffer(10'000, Access::remote_read_write);
  fill_pattern({target.data(), 10'000}, 1);
  announce(side, *peer, target);
  EXPECT_EQ(side.await(Kind::put_arrived).immediate, 3u);
  const bool direct = side.context().capabilities().direct_map;
  EXPECT_TRUE(has_pattern({target.data(), 10'000}, direct ? 2 : 1));
  peer->channel().send("end");
  peer->join();
}

TEST_P(Conformance, local_region_cannot_be_mapped) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    Connection* connection = side.connect(channel.receive());
    const auto region = connection->import(channel.receive());
    const auto mapped = region.ok() ? map(side, connection, *region) : region.status();
    EXPECT_FALSE(mapped.ok());
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  announce(side, *peer, side.buffer(4096, Access::local));
  side.accept();
  for (int i = 0; i < 20; ++i) side.wait_a_little();
  peer->channel().send("end");
  side.await(Kind::peer_lost);
  peer->join();
}

}  // namespace
}  // namespace gradrail::conformance
