#include <csignal>
#include <cstring>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "conformance/target.h"
#include "fmt/format.h"
#include "transport/prepared_puts.h"

namespace gradrail::conformance {
namespace {

/// More than any queue and any socket buffer holds of these.
constexpr uint64_t kLimit = 1'000'000;

/// Posts without ever polling until the queue says that it is full; returns how many it took. Each post must return at
/// once: a transport that blocks here would stop a shard for one slow worker.
template <typename Operation>
uint64_t fill_queue(const Operation& operation) {
  for (uint64_t i = 0; i < kLimit; ++i) {
    const TimePoint start = Clock::now();
    const absl::Status status = operation(i);
    // Generous: what a busy machine takes away from us is not the transport's.
    EXPECT_LT(seconds_since(start), 10.0) << "post " << i << " blocked";
    if (status.code() == absl::StatusCode::kResourceExhausted) return i;
    if (!status.ok()) throw Broken("post: " + status.ToString());
  }
  throw Broken("the queue takes everything");
}

/// The receiving end of both tests: counts until the sender reports the total.
void expect_all(Side& side, Channel& channel, uint64_t messages, uint64_t notices) {
  for (uint64_t i = 0; i < messages; ++i) ASSERT_EQ(side.await(Kind::message).message, std::to_string(i));
  for (uint64_t i = 0; i < notices; ++i) ASSERT_EQ(side.await(Kind::put_arrived).immediate, i);
  channel.send("all there");
}

TEST_P(Conformance, full_queue_refuses_then_everything_arrives) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    channel.send(side.listen());
    // No poll before this: the sender's queue fills meanwhile.
    const uint64_t messages = std::stoull(channel.receive());
    expect_all(side, channel, messages, 0);
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  Connection* connection = side.connect(peer->channel().receive());
  const uint64_t messages = fill_queue([&](uint64_t i) { return connection->send(bytes_of(std::to_string(i))); });
  EXPECT_GT(messages, 0u);
  peer->channel().send(std::to_string(messages + 1));
  side.send(connection, std::to_string(messages));  // the refused one, again
  EXPECT_EQ(side.serve_until_stopped(peer->channel()), "all there");
  peer->channel().send("end");
  peer->join();
}

TEST_P(Conformance, queue_full_of_puts_refuses_then_everything_arrives) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    Buffer& target = side.buffer(64 * kKiB, Access::remote_write);
    channel.send(side.listen());
    channel.send(target.key());
    side.accept();
    side.await(Kind::message);
    channel.send("standing still");
    const uint64_t notices = std::stoull(channel.receive());
    expect_all(side, channel, 0, notices);
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  Buffer& source = side.buffer(64 * kKiB, Access::local);
  Connection* connection = side.connect(peer->channel().receive());
  const auto region = connection->import(peer->channel().receive());
  ASSERT_TRUE(region.ok()) << region.status();
  side.put(connection, source.all(), {*region, 0});  // so that a peer's memory that is mapped late is mapped by now
  side.send(connection, "stop");
  EXPECT_EQ(side.serve_until_stopped(peer->channel()), "standing still");
  const uint64_t puts = fill_queue([&](uint64_t i) {
    return connection->put(source.slice(0, 64), {*region, 0}, {.immediate = i});
  });
  EXPECT_GT(puts, 0u);
  peer->channel().send(std::to_string(puts));
  EXPECT_EQ(side.serve_until_stopped(peer->channel()), "all there");
  peer->channel().send("end");
  peer->join();
}

// The refused group continues where the transport had no room. A notice that leaves before all bytes of its group, or
// twice, is seen by the order of the notices and by the number in the memory.
TEST_P(Conformance, queue_full_of_puts_in_groups_refuses_then_everything_arrives) {
  constexpr size_t kBytes = 4 * kKiB;
  constexpr uint64_t kGroups = 16;
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    Buffer& target = side.buffer(kGroups * kBytes, Access::remote_write);
    channel.send(side.listen());
    channel.send(target.key());
    side.accept();
    side.await(Kind::message);
    channel.send("standing still");
    const uint64_t notices = std::stoull(channel.receive());
    for (uint64_t i = 0; i < notices; ++i) {
      const uint64_t group = side.await(Kind::put_arrived).immediate;
      ASSERT_EQ(group, i % kGroups);
      const std::byte* const end = target.data() + (group + 1) * kBytes - 1;
      ASSERT_EQ(*end, std::byte{static_cast<uint8_t>(group)});
    }
    channel.send("all there");
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  Buffer& source = side.buffer(kGroups * kBytes, Access::local);
  for (uint64_t group = 0; group < kGroups; ++group)
    std::memset(source.data() + group * kBytes, static_cast<int>(group), kBytes);
  Connection* connection = side.connect(peer->channel().receive());
  const auto region = connection->import(peer->channel().receive());
  ASSERT_TRUE(region.ok()) << region.status();
  side.put(connection, source.slice(0, 64),
           {*region, 0});  // so that a peer's memory that is mapped late is mapped by now
  side.send(connection, "stop");
  EXPECT_EQ(side.serve_until_stopped(peer->channel()), "standing still");
  std::vector<std::unique_ptr<transport::PreparedPuts>> groups;
  for (uint64_t group = 0; group < kGroups; ++group) {
    const size_t at = group * kBytes;
    auto prepared = connection->prepare({{source.slice(at, kBytes - 64), {*region, at}},
                                         {source.slice(at + kBytes - 64, 64), {*region, at + kBytes - 64}}},
                                        group);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    groups.push_back(*std::move(prepared));
  }
  size_t posted = 0;
  const uint64_t whole = fill_queue([&](uint64_t i) {
    posted = 0;
    return groups[i % kGroups]->post(posted);
  });
  EXPECT_GT(whole, 0u);
  peer->channel().send(std::to_string(whole + 1));
  side.must_post([&] { return groups[whole % kGroups]->post(posted); });
  EXPECT_EQ(side.serve_until_stopped(peer->channel()), "all there");
  peer->channel().send("end");
  peer->join();
}

TEST_P(ProcessConformance, stopped_peer_fills_the_queue_and_all_arrives_after_it_continues) {
  ProcessPeer peer(GetParam(), [](Side& side, Channel& channel) {
    Buffer& target = side.buffer(64 * kKiB, Access::remote_write);
    channel.send(side.listen());
    channel.send(target.key());
    side.accept();
    side.await(Kind::message);
    const std::string counts = side.serve_until_stopped(channel);
    const uint64_t messages = std::stoull(counts.substr(0, counts.find(' ')));
    const uint64_t notices = std::stoull(counts.substr(counts.find(' ')));
    expect_all(side, channel, messages, notices);
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  Buffer& source = side.buffer(64 * kKiB, Access::local);
  Connection* connection = side.connect(peer.channel().receive());
  const auto region = connection->import(peer.channel().receive());
  ASSERT_TRUE(region.ok()) << region.status();
  side.put(connection, source.all(), {*region, 0});
  side.send(connection, "here");
  for (int i = 0; i < 50; ++i) side.wait_a_little();  // lets both leave our queue; how many do so does not matter
  peer.stop();
  const uint64_t puts = fill_queue([&](uint64_t i) {
    side.poll();  // as an owner does that has other peers as well
    return connection->put(source.all(), {*region, 0}, {.immediate = i});
  });
  EXPECT_GT(puts, 0u);
  uint64_t messages = 0;
  while (messages < kLimit && connection->send(bytes_of(std::to_string(messages))).ok()) ++messages;
  EXPECT_LT(messages, kLimit);
  peer.signal(SIGCONT);
  peer.channel().send(fmt::format("{} {}", messages, puts));
  EXPECT_EQ(side.serve_until_stopped(peer.channel()), "all there");
  peer.channel().send("end");
  peer.join();
}

}  // namespace
}  // namespace gradrail::conformance
