#include <array>
#include <cstring>
#include <memory>

#include "base/crc32c.h"
#include "base/random.h"
#include "conformance/pattern.h"
#include "conformance/target.h"
#include "fmt/format.h"
#include "transport/prepared_puts.h"

namespace gradrail::conformance {
namespace {

void put_u64(Side& side, const Target& target, Buffer& source, size_t index, uint64_t value, size_t target_offset,
             std::optional<uint64_t> immediate) {
  std::memcpy(source.data() + index * 8, &value, 8);
  side.put(target.connection, source.slice(index * 8, 8), {target.region, target_offset}, {.immediate = immediate});
}

uint64_t u64_at(const Buffer& buffer, size_t offset) {
  uint64_t value = 0;
  std::memcpy(&value, buffer.data() + offset, 8);
  return value;
}

TEST_P(Conformance, put_is_visible_before_its_notice) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const Target target = reach(side, channel);
    Buffer& source = side.buffer(100 * kKiB, Access::local);
    for (uint64_t i = 1; i <= 50; ++i) {
      fill_pattern({source.data(), source.bytes()}, i);
      side.put(target.connection, source.all(), {target.region, 0}, {.immediate = i, .tag = i});
      EXPECT_EQ(side.await(Kind::put_done).tag, i);
      EXPECT_EQ(side.await(Kind::message).message, "next");
    }
  });
  Side side(*GetParam().transport);
  Buffer& target = side.buffer(100 * kKiB, Access::remote_write);
  announce(side, *peer, target);
  Connection* connection = side.accept();
  for (uint64_t i = 1; i <= 50; ++i) {
    ASSERT_EQ(side.await(Kind::put_arrived, connection).immediate, i);
    ASSERT_EQ(first_difference({target.data(), target.bytes()}, i), target.bytes());
    side.send(connection, "next");
  }
  side.await(Kind::peer_lost);
  peer->join();
}

TEST_P(Conformance, immediates_keep_all_their_bits) {
  const std::vector<uint64_t> values = {0, 1, UINT32_MAX, uint64_t{1} << 32, uint64_t{1} << 63, UINT64_MAX};
  const auto peer = start_peer(GetParam(), [&](Side& side, Channel& channel) {
    const Target target = reach(side, channel);
    for (const uint64_t value : values) {
      side.put(target.connection, {}, {target.region, 0}, {.immediate = value});
    }
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  const int bits = side.context().capabilities().immediate_bits;
  const uint64_t mask = bits >= 64 ? UINT64_MAX : (uint64_t{1} << bits) - 1;
  announce(side, *peer, side.buffer(64, Access::remote_write));
  for (const uint64_t value : values) EXPECT_EQ(side.await(Kind::put_arrived).immediate, value & mask);
  peer->channel().send("end");
  peer->join();
}

// Put i writes i into word 0 and into word i: word 0 must never be behind the notice, nor any earlier word missing.
TEST_P(Conformance, puts_become_visible_in_the_order_posted) {
  constexpr uint64_t kPuts = 5000;
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const Target target = reach(side, channel);
    Buffer& source = side.buffer((kPuts + 1) * 16, Access::local);
    for (uint64_t i = 1; i <= kPuts; ++i) {
      const bool notify = i % 7 == 0 || i == kPuts;
      put_u64(side, target, source, 2 * i, i, i * 8, std::nullopt);
      put_u64(side, target, source, 2 * i + 1, i, 0, notify ? std::optional<uint64_t>(i) : std::nullopt);
    }
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  Buffer& target = side.buffer((kPuts + 1) * 8, Access::remote_write);
  announce(side, *peer, target);
  uint64_t checked = 0;
  while (checked < kPuts) {
    const uint64_t notice = side.await(Kind::put_arrived).immediate;
    ASSERT_EQ(notice, std::min(kPuts, checked + 7 - checked % 7)) << "a notice is missing or out of order";
    ASSERT_GE(u64_at(target, 0), notice);
    for (uint64_t i = checked + 1; i <= notice; ++i) ASSERT_EQ(u64_at(target, i * 8), i);
    checked = notice;
  }
  EXPECT_EQ(u64_at(target, 0), kPuts) << "the last write wins";
  peer->channel().send("end");
  peer->join();
}

// Small puts behind large ones, at random offsets that overlap: the memory must end as if they had run one by one.
TEST_P(Conformance, random_overlapping_puts_end_as_if_run_one_by_one) {
  constexpr uint64_t kSeed = 20240611;
  constexpr size_t kPuts = 300;
  constexpr size_t kTargetBytes = 512 * kKiB;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  struct Step {
    size_t bytes, source_offset, target_offset;
  };
  std::vector<Step> steps;
  Random random(kSeed);
  for (size_t i = 0; i < kPuts; ++i) {
    const size_t bytes = random.below(random.below(4) == 0 ? 200 * kKiB : 300);
    steps.push_back({bytes, random.below(kTargetBytes - bytes), random.below(kTargetBytes - bytes)});
  }
  const auto peer = start_peer(GetParam(), [&](Side& side, Channel& channel) {
    const Target target = reach(side, channel);
    Buffer& source = side.buffer(kTargetBytes, Access::local);
    fill_pattern({source.data(), source.bytes()}, kSeed);
    for (size_t i = 0; i < kPuts; ++i) {
      const Step& step = steps[i];
      side.put(target.connection, source.slice(step.source_offset, step.bytes), {target.region, step.target_offset},
               {.immediate = i % 3 == 0 ? std::optional<uint64_t>(i) : std::nullopt});
    }
    side.put(target.connection, {}, {target.region, 0}, {.immediate = kPuts});
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  Buffer& target = side.buffer(kTargetBytes, Access::remote_write);
  std::vector<std::byte> source(kTargetBytes), expected(kTargetBytes);
  fill_pattern(absl::MakeSpan(source), kSeed);
  for (const Step& step : steps) {
    std::memcpy(expected.data() + step.target_offset, source.data() + step.source_offset, step.bytes);
  }
  announce(side, *peer, target);
  for (size_t i = 0; i < kPuts; i += 3) ASSERT_EQ(side.await(Kind::put_arrived).immediate, i);
  ASSERT_EQ(side.await(Kind::put_arrived).immediate, kPuts);
  EXPECT_EQ(std::memcmp(target.data(), expected.data(), kTargetBytes), 0);
  peer->channel().send("end");
  peer->join();
}

TEST_P(Conformance, puts_of_every_size_arrive_whole) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const Target target = reach(side, channel);
    Buffer& source = side.buffer(256 * kMiB + kOdd, Access::local);
    for (const size_t bytes : kSizes) {
      fill_pattern({source.data() + 13, bytes}, bytes);
      channel.send(std::to_string(crc32c(source.data() + 13, bytes)));
      side.put(target.connection, source.slice(13, bytes), {target.region, kOdd}, {.immediate = bytes, .tag = 1});
      side.await(Kind::put_done);
      side.serve_until_stopped(channel);
    }
  });
  Side side(*GetParam().transport);
  Buffer& target = side.buffer(256 * kMiB + 2 * kOdd, Access::remote_write);
  announce(side, *peer, target);
  for (const size_t bytes : kSizes) {
    SCOPED_TRACE(bytes);
    const std::string crc = peer->channel().receive();
    ASSERT_EQ(side.await(Kind::put_arrived).immediate, bytes);
    EXPECT_EQ(std::to_string(crc32c(target.data() + kOdd, bytes)), crc);
    EXPECT_TRUE(all_equal({target.data(), kOdd}, std::byte{0})) << "wrote in front of the slice";
    EXPECT_TRUE(all_equal({target.data() + kOdd + bytes, kOdd}, std::byte{0})) << "wrote behind the slice";
    peer->channel().send("next");
  }
  peer->join();
}

// One side's half of the next test; both run the same.
void put_both_ways(Side& side, Connection* connection, const std::string& key, const Buffer& target, uint64_t own_seed,
                   uint64_t peer_seed) {
  constexpr uint64_t kRounds = 10;
  const auto region = connection->import(key);
  ASSERT_TRUE(region.ok()) << region.status();
  const size_t bytes = target.bytes() / kRounds;
  Buffer& source = side.buffer(target.bytes(), Access::local);
  for (uint64_t i = 0; i < kRounds; ++i) {
    fill_pattern({source.data() + i * bytes, bytes}, own_seed + i);
    side.put(connection, source.slice(i * bytes, bytes), {*region, i * bytes}, {.immediate = i, .tag = i + 1});
  }
  for (uint64_t i = 0; i < kRounds; ++i) {
    ASSERT_EQ(side.await(Kind::put_arrived, connection).immediate, i);
    EXPECT_TRUE(has_pattern({target.data() + i * bytes, bytes}, peer_seed + i));
  }
  for (uint64_t i = 0; i < kRounds; ++i) ASSERT_EQ(side.await(Kind::put_done, connection).tag, i + 1);
}

// Both sides send far more than any socket buffers: a side that writes everything before it reads blocks here.
TEST_P(Conformance, puts_both_ways_at_once) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    Connection* connection = side.connect(channel.receive());
    Buffer& target = side.buffer(40 * kMiB, Access::remote_write);
    channel.send(target.key());
    put_both_ways(side, connection, side.serve_until_stopped(channel), target, 1000, 2000);
    channel.send("done");
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  Buffer& target = side.buffer(40 * kMiB, Access::remote_write);
  peer->channel().send(side.listen());
  Connection* connection = side.accept();
  const std::string key = peer->channel().receive();
  peer->channel().send(target.key());
  put_both_ways(side, connection, key, target, 2000, 1000);
  EXPECT_EQ(side.serve_until_stopped(peer->channel()), "done");
  peer->channel().send("end");
  peer->join();
}

// After put_done the source is the caller's again: it is overwritten at once, and that must not show at the peer.
// One peer for all sizes: a process that has used RDMA devices can fork no other that does.
TEST_P(Conformance, source_may_be_reused_after_put_done) {
  static constexpr std::array<size_t, 3> kReused = {100, 4 * kKiB, 300 * kKiB};
  static constexpr size_t kPuts = 40;
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const Target target = reach(side, channel);
    Buffer& source = side.buffer(kReused.back(), Access::local);
    for (const size_t bytes : kReused) {
      for (uint64_t i = 0; i < kPuts; ++i) {
        fill_pattern({source.data(), bytes}, i);
        side.put(target.connection, source.slice(0, bytes), {target.region, i * bytes}, {.immediate = i, .tag = i + 1});
        EXPECT_EQ(side.await(Kind::put_done).tag, i + 1);
        std::memset(source.data(), 0xee, bytes);
      }
      side.serve_until_stopped(channel);
    }
  });
  Side side(*GetParam().transport);
  Buffer& target = side.buffer(kPuts * kReused.back(), Access::remote_write);
  announce(side, *peer, target);
  for (const size_t bytes : kReused) {
    SCOPED_TRACE(bytes);
    for (uint64_t i = 0; i < kPuts; ++i) ASSERT_EQ(side.await(Kind::put_arrived).immediate, i);
    for (uint64_t i = 0; i < kPuts; ++i) EXPECT_TRUE(has_pattern({target.data() + i * bytes, bytes}, i)) << i;
    peer->channel().send("next");
  }
  peer->join();
}

TEST_P(Conformance, only_tagged_puts_report_done_and_only_immediates_notify) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const Target target = reach(side, channel);
    Buffer& source = side.buffer(64, Access::local);
    for (uint64_t i = 0; i < 100; ++i) {
      side.put(target.connection, source.all(), {target.region, 0}, {.tag = i == 50 ? uint64_t{99} : 0});
    }
    side.put(target.connection, source.all(), {target.region, 0}, {.immediate = 5});
    EXPECT_EQ(side.serve_until_stopped(channel), "end");
    EXPECT_EQ(side.await(Kind::put_done).tag, 99u);
    EXPECT_FALSE(side.has(Kind::put_done));
  });
  Side side(*GetParam().transport);
  announce(side, *peer, side.buffer(64, Access::remote_write));
  EXPECT_EQ(side.await(Kind::put_arrived).immediate, 5u);
  EXPECT_FALSE(side.has(Kind::put_arrived));
  peer->channel().send("end");
  peer->join();
}

// Sizes of one frame and of several, and a put without bytes.
TEST_P(Conformance, a_prepared_group_sends_what_its_source_has_at_each_post) {
  static constexpr std::array<size_t, 4> kSizes = {0, 64, 8 * kKiB, 300 * kKiB};
  static constexpr uint64_t kPosts = 20;
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const Target target = reach(side, channel);
    Buffer& source = side.buffer(8 + kSizes.back(), Access::local);
    for (const size_t bytes : kSizes) {
      absl::StatusOr<std::unique_ptr<transport::PreparedPuts>> group = nullptr;
      side.must_post([&] {
        group = target.connection->prepare(
            {{source.slice(8, bytes), {target.region, 8}}, {source.slice(0, 8), {target.region, 0}}}, bytes);
        return group.status();
      });
      for (uint64_t i = 1; i <= kPosts; ++i) {
        std::memcpy(source.data(), &i, sizeof(i));
        fill_pattern({source.data() + 8, bytes}, i);
        size_t posted = 0;
        side.must_post([&] { return (*group)->post(posted); });
        EXPECT_EQ(posted, 2u);
        EXPECT_EQ(side.await(Kind::message).message, "next");
      }
    }
  });
  Side side(*GetParam().transport);
  Buffer& target = side.buffer(8 + kSizes.back(), Access::remote_write);
  announce(side, *peer, target);
  Connection* connection = side.accept();
  for (const size_t bytes : kSizes) {
    SCOPED_TRACE(bytes);
    for (uint64_t i = 1; i <= kPosts; ++i) {
      ASSERT_EQ(side.await(Kind::put_arrived, connection).immediate, bytes);
      EXPECT_EQ(u64_at(target, 0), i);
      ASSERT_TRUE(has_pattern({target.data() + 8, bytes}, i)) << i;
      side.send(connection, "next");
    }
  }
  side.await(Kind::peer_lost);
  peer->join();
}

TEST_P(Conformance, a_group_outside_its_own_region_is_refused) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const Target target = reach(side, channel);
    Buffer& source = side.buffer(128, Access::local);
    const auto refused = [&](const transport::Transfer& put) {
      size_t posted = 0;
      const absl::Status status = side.post([&] {
        auto group = target.connection->prepare({put}, 1);
        return group.ok() ? (*group)->post(posted) : group.status();
      });
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_EQ(posted, 0u);
    };
    refused({source.slice(65, 64), {target.region, 0}});
    refused({{.bytes = 64}, {target.region, 0}});
    side.put(target.connection, source.slice(0, 64), {target.region, 0}, {.immediate = 5});
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  announce(side, *peer, side.buffer(64, Access::remote_write));
  EXPECT_EQ(side.await(Kind::put_arrived).immediate, 5u) << "the connection works as before";
  peer->channel().send("end");
  peer->join();
}

}  // namespace
}  // namespace gradrail::conformance
