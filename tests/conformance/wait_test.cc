#include <time.h>

#include <array>
#include <thread>

#include "base/clock.h"
#include "base/random.h"
#include "conformance/target.h"

namespace gradrail::conformance {
namespace {

using transport::WaitSet;

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Blocks until an event arrives. Unlike Side::await it waits once, so that a missed wake-up is visible. The wait then
/// ends at the deadline, when wait() polls for the last time.
Completion wait_once(WaitSet& waits) {
  const TimePoint deadline = Clock::now() + timeout();
  std::array<Completion, 1> one;
  const size_t count = waits.wait(absl::MakeSpan(one), deadline);
  if (count == 0) throw Broken("waited in vain");
  if (Clock::now() >= deadline) throw Broken("a wake-up was missed");
  return one[0];
}

Completion wait_for(WaitSet& waits, Kind kind) {
  while (true) {
    const Completion completion = wait_once(waits);
    if (completion.kind == kind) return completion;
    if (completion.kind == Kind::peer_lost) throw Broken("peer lost: " + completion.cause.ToString());
  }
}

void must_send(Connection* connection, std::string_view text) {
  const absl::Status status = connection->send(bytes_of(text));
  if (!status.ok()) throw Broken("send: " + status.ToString());
}

/// A peer that connects, says hello, then `then` happens.
PeerBody hello_then(const std::function<void(Side&, Connection*, Channel&)>& then) {
  return [then](Side& side, Channel& channel) {
    Connection* connection = side.connect(channel.receive());
    side.send(connection, "hello");
    then(side, connection, channel);
  };
}

TEST_P(Conformance, waiting_blocks_until_the_deadline_without_burning_a_core) {
  const auto peer = start_peer(GetParam(), hello_then([](Side& side, Connection*, Channel& channel) {
                                 side.serve_until_stopped(channel);
                                 channel.receive();
                               }));
  Side side(*GetParam().transport);
  peer->channel().send(side.listen());
  side.await(Kind::message);
  peer->channel().send("the hello came");
  for (int i = 0; i < 20; ++i) side.wait_a_little();  // the rest of the set-up
  WaitSet waits({});
  waits.add(&side.context());
  std::array<Completion, 4> out;
  const TimePoint start = Clock::now();
  const double cpu_start = thread_cpu_seconds();
  EXPECT_EQ(waits.wait(absl::MakeSpan(out), start + std::chrono::milliseconds(300)), 0u);
  EXPECT_GE(seconds_since(start), 0.3);
  EXPECT_LT(thread_cpu_seconds() - cpu_start, 0.06) << "more than 20 % of the wait";
  peer->channel().send("end");
  peer->join();
}

TEST_P(Conformance, waiting_ends_when_another_thread_wakes) {
  Side side(*GetParam().transport);
  side.listen();
  WaitSet waits({});
  waits.add(&side.context());
  std::array<Completion, 4> out;
  const TimePoint deadline = Clock::now() + timeout();
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that the other blocks first, as a rule
    waits.wake();
  });
  EXPECT_EQ(waits.wait(absl::MakeSpan(out), deadline), 0u);
  waker.join();
  EXPECT_LT(Clock::now(), deadline) << "the wake-up was missed";
}

TEST_P(Conformance, waiting_ends_when_the_peer_is_lost) {
  const auto peer = start_peer(GetParam(), hello_then([](Side& side, Connection*, Channel& channel) {
                                 side.serve_until_stopped(channel);
                                 std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the other blocks first
                               }));
  Side side(*GetParam().transport);
  WaitSet waits({});
  waits.add(&side.context());
  peer->channel().send(side.listen());
  wait_for(waits, Kind::message);
  peer->channel().send("go");
  EXPECT_EQ(wait_once(waits).kind, Kind::peer_lost);
  peer->join();
}

// Both ends only ever block: after one missed wake-up wait_once() throws Broken.
TEST_P(Conformance, no_wakeup_is_missed_in_20000_round_trips) {
  constexpr int kRoundTrips = 20'000;
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    WaitSet waits({});
    waits.add(&side.context());
    Connection* connection = side.connect(channel.receive());
    for (int i = 0; i < kRoundTrips; ++i) {
      must_send(connection, "ping");
      wait_for(waits, Kind::message);
    }
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  WaitSet waits({});
  waits.add(&side.context());
  peer->channel().send(side.listen());
  for (int i = 0; i < kRoundTrips; ++i) must_send(wait_for(waits, Kind::message).connection, "pong");
  peer->channel().send("end");
  peer->join();
}

// The same with puts and notices, which may go another way than messages.
TEST_P(Conformance, no_wakeup_is_missed_in_5000_round_trips_of_puts) {
  constexpr uint64_t kRoundTrips = 5'000;
  const auto bounce = [](WaitSet& waits, Connection* connection, RemoteRegion region, Buffer& source, uint64_t i) {
    while (true) {
      const absl::Status status = connection->put(source.all(), {region, 0}, {.immediate = i});
      if (status.ok()) return;
      if (status.code() != absl::StatusCode::kResourceExhausted) throw Broken("put: " + status.ToString());
      std::array<Completion, 1> one;  // the peer's memory is being mapped
      waits.wait(absl::MakeSpan(one), Clock::now() + std::chrono::milliseconds(1));
    }
  };
  const auto peer = start_peer(GetParam(), [&](Side& side, Channel& channel) {
    WaitSet waits({});
    waits.add(&side.context());
    Buffer& source = side.buffer(1000, Access::local);
    Buffer& own_target = side.buffer(1000, Access::remote_write);
    const Target target = reach(side, channel);
    channel.send(own_target.key());
    side.serve_until_stopped(channel);  // an encrypted connection is agreed on meanwhile
    for (uint64_t i = 0; i < kRoundTrips; ++i) {
      bounce(waits, target.connection, target.region, source, i);
      if (wait_for(waits, Kind::put_arrived).immediate != i) throw Broken("wrong notice");
    }
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  WaitSet waits({});
  waits.add(&side.context());
  Buffer& source = side.buffer(1000, Access::local);
  announce(side, *peer, side.buffer(1000, Access::remote_write));
  Connection* connection = side.accept();
  const auto region = connection->import(peer->channel().receive());
  ASSERT_TRUE(region.ok()) << region.status();
  peer->channel().send("go");
  for (uint64_t i = 0; i < kRoundTrips; ++i) {
    ASSERT_EQ(wait_for(waits, Kind::put_arrived).immediate, i);
    bounce(waits, connection, *region, source, i);
  }
  peer->channel().send("end");
  peer->join();
}

// Only wait() polls here: a transport must request a wake-up for pending writes, too.
TEST_P(Conformance, waiting_alone_drives_large_puts) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    Buffer& source = side.buffer(64 * kMiB, Access::local);
    const Target target = reach(side, channel);
    WaitSet waits({});
    waits.add(&side.context());
    side.put(target.connection, source.all(), {target.region, 0}, {.immediate = 1});
    side.put(target.connection, source.all(), {target.region, 0}, {.immediate = 2, .tag = 9});
    // The end of a put and the answer of the peer have no order (connection.h).
    bool put_ended = false;
    bool answered = false;
    while (!put_ended || !answered) {
      const Completion completion = wait_once(waits);
      switch (completion.kind) {
        case Kind::put_done:
          EXPECT_EQ(completion.tag, 9u);
          put_ended = true;
          break;
        case Kind::message:
          EXPECT_EQ(completion.message.size(), 6u);
          answered = true;
          break;
        default:
          throw Broken("an unexpected completion: " + completion.cause.ToString());
      }
    }
  });
  Side side(*GetParam().transport);
  WaitSet waits({});
  waits.add(&side.context());
  announce(side, *peer, side.buffer(64 * kMiB, Access::remote_write));
  EXPECT_EQ(wait_for(waits, Kind::put_arrived).immediate, 1u);
  const Completion second = wait_for(waits, Kind::put_arrived);
  EXPECT_EQ(second.immediate, 2u);
  must_send(second.connection, "thanks");
  EXPECT_EQ(wait_once(waits).kind, Kind::peer_lost);
  peer->join();
}

const transport::Transport* another_transport(const Setup& setup) {
  for (const transport::Transport& transport : transport::transports()) {
    if (transport.name == setup.transport->name) continue;
    if (setup.peers == Peers::processes && in_process_only(transport)) continue;
    if (transport.open({}).ok()) return &transport;
  }
  return nullptr;
}

TEST_P(Conformance, one_thread_waits_on_two_transports_at_once) {
  constexpr int kRoundTrips = 2000;
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(kSeed);
  const transport::Transport* other = another_transport(GetParam());
  if (other == nullptr) GTEST_SKIP() << "no other transport can be opened here";
  const auto peer = start_peer(GetParam(), [&](Side& first, Channel& channel) {
    Side second(*other);
    std::array<Connection*, 2> connections = {first.connect(channel.receive()), second.connect(channel.receive())};
    WaitSet waits({});
    waits.add(&first.context());
    waits.add(&second.context());
    Random random(kSeed);
    for (int i = 0; i < kRoundTrips; ++i) {
      Connection* connection = connections[random.below(2)];
      must_send(connection, "ping");
      EXPECT_EQ(wait_for(waits, Kind::message).connection, connection) << "answer over the wrong transport";
    }
    first.serve_until_stopped(channel);
  });
  Side first(*GetParam().transport), second(*other);
  WaitSet waits({});
  waits.add(&first.context());
  waits.add(&second.context());
  peer->channel().send(first.listen());
  peer->channel().send(second.listen());
  for (int i = 0; i < kRoundTrips; ++i) must_send(wait_for(waits, Kind::message).connection, "pong");
  peer->channel().send("end");
  peer->join();
}

}  // namespace
}  // namespace gradrail::conformance
