#include <vector>

#include "conformance/pattern.h"
#include "conformance/target.h"

namespace gradrail::conformance {
namespace {

TEST_P(Conformance, gets_of_every_size_arrive_whole) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const Target remote = reach(side, channel);
    Buffer& local = side.buffer(256 * kMiB + 2 * kOdd, Access::local);
    for (const size_t bytes : kSizes) {
      SCOPED_TRACE(bytes);
      side.must_post([&] { return remote.connection->get(local.slice(kOdd, bytes), {remote.region, 13}, bytes); });
      ASSERT_EQ(side.await(Kind::get_done).tag, bytes);
      EXPECT_EQ(first_difference({local.data() + kOdd, bytes}, bytes), bytes);
      EXPECT_TRUE(all_equal({local.data(), kOdd}, std::byte{0})) << "wrote in front of the slice";
      EXPECT_TRUE(all_equal({local.data() + kOdd + bytes, kOdd}, std::byte{0})) << "wrote behind the slice";
      channel.send("next");
      side.serve_until_stopped(channel);
    }
  });
  Side side(*GetParam().transport);
  Buffer& source = side.buffer(256 * kMiB + kOdd, Access::remote_read);
  fill_pattern({source.data() + 13, kSizes[0]}, kSizes[0]);
  announce(side, *peer, source);
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    EXPECT_EQ(side.serve_until_stopped(peer->channel()), "next");
    if (i + 1 < std::size(kSizes)) fill_pattern({source.data() + 13, kSizes[i + 1]}, kSizes[i + 1]);
    peer->channel().send("go");
  }
  peer->join();
}

TEST_P(Conformance, many_gets_at_once_fill_their_own_targets) {
  constexpr size_t kGets = 500;
  constexpr size_t kBytes = 777;
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const Target remote = reach(side, channel);
    Buffer& local = side.buffer(kGets * kBytes, Access::local);
    for (size_t i = 0; i < kGets; ++i) {
      side.must_post([&] {
        return remote.connection->get(local.slice(i * kBytes, kBytes), {remote.region, (kGets - 1 - i) * kBytes}, i);
      });
    }
    std::vector<bool> done(kGets);
    for (size_t i = 0; i < kGets; ++i) done.at(side.await(Kind::get_done).tag) = true;
    for (size_t i = 0; i < kGets; ++i) {
      EXPECT_TRUE(done[i]) << i;
      EXPECT_TRUE(has_pattern({local.data() + i * kBytes, kBytes}, kGets - 1 - i)) << i;
    }
    channel.send("end");
  });
  Side side(*GetParam().transport);
  Buffer& source = side.buffer(kGets * kBytes, Access::remote_read);
  for (size_t i = 0; i < kGets; ++i) fill_pattern({source.data() + i * kBytes, kBytes}, i);
  announce(side, *peer, source);
  EXPECT_EQ(side.serve_until_stopped(peer->channel()), "end");
  peer->join();
}

}  // namespace
}  // namespace gradrail::conformance
