#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "transport/rail_bytes.h"
#include "transport/rails/bundle_context.h"
#include "transport/rails/greeting.h"
#include "transport/tcp/context.h"

namespace gradrail::transport::rails {
namespace {

using Kind = Completion::Kind;
using namespace std::chrono_literals;

constexpr Duration kRailsTimeout = 20s;
constexpr char kTwoRails[] = "lanes:127.0.0.1:0,127.0.0.2:0";

absl::Span<const std::byte> bytes_of_text(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

struct Seen {
  Kind kind{};
  Connection* connection = nullptr;
  uint64_t tag = 0;
  uint64_t immediate = 0;
  uint32_t lane = 0;
  std::string message;
  std::string cause;
};

std::unique_ptr<BundleContext> open_bundle(uint32_t streams, const Limits& limits = {}) {
  return std::make_unique<BundleContext>(tcp::open({}).value(), streams, limits);
}

/// Polls contexts in one thread and keeps their completions.
class Rails : public ::testing::Test {
 protected:
  void turn() {
    std::array<Completion, 8> out;
    for (Context* context : polled_) {
      const size_t count = context->poll(absl::MakeSpan(out));
      for (size_t i = 0; i < count; ++i) {
        Seen seen{out[i].kind, out[i].connection, out[i].tag, out[i].immediate, out[i].lane};
        seen.message.assign(reinterpret_cast<const char*>(out[i].message.data()), out[i].message.size());
        seen.cause = out[i].cause.ToString();
        seen_[context].push_back(std::move(seen));
      }
    }
  }

  Seen await(Context& context, Kind kind) {
    const TimePoint deadline = Clock::now() + kRailsTimeout;
    while (Clock::now() < deadline) {
      std::vector<Seen>& all = seen_[&context];
      for (auto each = all.begin(); each != all.end(); ++each) {
        if (each->kind != kind) continue;
        Seen found = *each;
        all.erase(each);
        return found;
      }
      turn();
    }
    ADD_FAILURE() << "no completion of kind " << static_cast<int>(kind);
    return {};
  }

  void turns(Duration time) {
    for (const TimePoint end = Clock::now() + time; Clock::now() < end;) turn();
  }

  /// A pair over two rails.
  void connect(uint32_t streams) {
    server_ = open_bundle(1);
    client_ = open_bundle(streams);
    polled_ = {server_.get(), client_.get()};
    address_ = server_->listen(kTwoRails).value();
    to_server_ = client_->connect(address_, Clock::now() + kRailsTimeout).value();
    to_client_ = await(*server_, Kind::connected).connection;
    ASSERT_NE(to_client_, nullptr);
    turns(50ms);  // for the welcome
  }

  /// A lane that a test greets by itself.
  Connection* raw_lane(const std::string& address) {
    const std::string first = address.substr(kLanesPrefix.size());
    return raw_->connect(first.substr(0, first.find(',')), Clock::now() + kRailsTimeout).value();
  }
  void open_raw(const Limits& limits = {}) {
    server_ = open_bundle(1, limits);
    raw_ = tcp::open({}).value();
    polled_ = {server_.get(), raw_.get()};
    address_ = server_->listen(kTwoRails).value();
  }
  void expect_closed(const std::string& greeting) {
    Connection* lane = raw_lane(address_);
    ASSERT_TRUE(lane->send(bytes_of_text(greeting)).ok());
    EXPECT_EQ(await(*raw_, Kind::peer_lost).connection, lane);
    raw_->close(lane);
    EXPECT_TRUE(seen_[server_.get()].empty());
  }

  std::map<Context*, std::vector<Seen>> seen_;
  std::vector<Context*> polled_;
  std::unique_ptr<Context> raw_;
  std::unique_ptr<BundleContext> server_;
  std::unique_ptr<BundleContext> client_;
  std::string address_;
  Connection* to_server_ = nullptr;
  Connection* to_client_ = nullptr;
};

TEST_F(Rails, EachLaneCarriesWholeGroupsInBothDirections) {
  connect(2);
  ASSERT_EQ(to_server_->lanes(), 4u);
  ASSERT_EQ(to_client_->lanes(), 4u);
  EXPECT_EQ(to_server_->path(), "tcp 2 rails × 2 streams (127.0.0.1, 127.0.0.2)");
  EXPECT_EQ(to_client_->path(), to_server_->path());
  constexpr size_t kGroups = 64;
  constexpr size_t kBytes = 300'000;
  std::vector<std::byte> source(kGroups * kBytes), target(kGroups * kBytes), back(kGroups * kBytes);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i % 251);
  const auto from = client_->register_memory({source.data(), source.size()}, Access::local).value();
  const auto to = server_->register_memory({target.data(), target.size()}, Access::remote_write).value();
  const auto returned = client_->register_memory({back.data(), back.size()}, Access::remote_write).value();
  const auto from_server = server_->register_memory({target.data(), target.size()}, Access::local).value();
  const RemoteRegion region = to_server_->import(to->key()).value();
  const RemoteRegion way_back = to_client_->import(returned->key()).value();
  const auto post = [&](Connection& connection, const MemoryRegion& local, RemoteRegion remote) {
    for (size_t i = 0; i < kGroups; ++i) {
      const size_t at = i * kBytes;
      // The first half without a notice: it must be there with the notice of the second one.
      ASSERT_TRUE(connection.put({&local, at, kBytes / 2}, {remote, at}, {}).ok());
      ASSERT_TRUE(
          connection
              .put({&local, at + kBytes / 2, kBytes / 2}, {remote, at + kBytes / 2}, {.immediate = i, .tag = i + 1})
              .ok());
    }
  };
  const auto expect_groups = [&](Context& receiver, Context& sender, const std::vector<std::byte>& arrived) {
    std::set<uint64_t> notices, done;
    for (size_t i = 0; i < kGroups; ++i) {
      const Seen arrival = await(receiver, Kind::put_arrived);
      const uint64_t group = arrival.immediate;
      arrival.connection->count_received(arrival.lane, kBytes);
      ASSERT_TRUE(notices.insert(group).second);
      ASSERT_TRUE(std::equal(source.begin() + group * kBytes, source.begin() + (group + 1) * kBytes,
                             arrived.begin() + group * kBytes));
    }
    for (size_t i = 0; i < kGroups; ++i) done.insert(await(sender, Kind::put_done).tag);
    EXPECT_EQ(done.size(), kGroups);
    EXPECT_FALSE(done.contains(0));
  };
  post(*to_server_, *from, region);
  expect_groups(*server_, *client_, target);
  post(*to_client_, *from_server, way_back);
  expect_groups(*client_, *server_, back);
  client_->close(to_server_);
  await(*server_, Kind::peer_lost);
  server_->close(to_client_);
  // The counters outlast their connections. The window of a lane takes six groups before the first poll.
  const RailTraffic pushed = client_->rail_traffic(), arrived = server_->rail_traffic();
  const Rail first{"tcp", "127.0.0.1"}, second{"tcp", "127.0.0.2"};
  ASSERT_EQ(pushed.size(), 2u);
  ASSERT_EQ(arrived.size(), 2u);
  for (const Rail& rail : {first, second}) {
    EXPECT_EQ(arrived.at(rail).received, pushed.at(rail).sent);
    EXPECT_EQ(arrived.at(rail).sent, pushed.at(rail).received);
    EXPECT_GE(pushed.at(rail).sent, 6 * kBytes);
    EXPECT_GE(pushed.at(rail).received, 6 * kBytes);
  }
  EXPECT_EQ(pushed.at(first).sent + pushed.at(second).sent, kGroups * kBytes);
  EXPECT_EQ(pushed.at(first).received + pushed.at(second).received, kGroups * kBytes);
}

TEST_F(Rails, MoreStreamsThanTheRailsOfAPeerAllowAreRefusedForGood) {
  server_ = open_bundle(1);
  client_ = open_bundle(33);
  polled_ = {server_.get(), client_.get()};
  const auto refused = client_->connect(server_->listen(kTwoRails).value(), Clock::now() + kRailsTimeout);
  EXPECT_EQ(refused.status(),
            absl::FailedPreconditionError(
                "2 rails of 33 streams are 66 lanes, and 64 is the limit; give --streams 32 or less"));
  turns(50ms);
  EXPECT_TRUE(seen_[server_.get()].empty()) << "no lane was opened";
}

TEST_F(Rails, APlainPeerHasOneLaneWithoutGreeting) {
  open_raw();
  const std::string plain = server_->listen("127.0.0.1:0").value();
  Connection* connection = raw_->connect(plain, Clock::now() + kRailsTimeout).value();
  Connection* accepted = await(*server_, Kind::connected).connection;
  EXPECT_EQ(accepted->lanes(), 1u);
  EXPECT_EQ(accepted->path(), "tcp");
  ASSERT_TRUE(accepted->send(bytes_of_text("first")).ok());
  EXPECT_EQ(await(*raw_, Kind::message).message, "first");
  raw_->close(connection);
  await(*server_, Kind::peer_lost);
}

TEST_F(Rails, TheLossOfOneLaneLosesTheBundleOnce) {
  open_raw();
  Greeting greeting{.id = std::string(kBundleIdBytes, 'x'), .lanes = 2};
  std::vector<Connection*> lanes;
  for (; greeting.lane < 2; ++greeting.lane) {
    lanes.push_back(raw_lane(address_));
    ASSERT_TRUE(lanes.back()->send(bytes_of_text(greeting.encode())).ok());
  }
  Connection* accepted = await(*server_, Kind::connected).connection;
  ASSERT_EQ(accepted->lanes(), 2u);
  EXPECT_EQ(await(*raw_, Kind::message).message, kWelcome);
  raw_->close(lanes[1]);
  EXPECT_EQ(await(*server_, Kind::peer_lost).connection, accepted);
  ASSERT_TRUE(lanes[0]->send(bytes_of_text("late")).ok());
  turns(100ms);
  EXPECT_TRUE(seen_[server_.get()].empty()) << "nothing more comes from a lost connection";
  EXPECT_FALSE(accepted->send(bytes_of_text("x")).ok());
  server_->close(accepted);
  EXPECT_EQ(await(*raw_, Kind::peer_lost).connection, lanes[0]);
}

TEST_F(Rails, NothingMayComeBeforeTheLastLane) {
  open_raw();
  const Greeting greeting{.id = std::string(kBundleIdBytes, 'y'), .lanes = 2};
  Connection* first = raw_lane(address_);
  ASSERT_TRUE(first->send(bytes_of_text(greeting.encode())).ok());
  ASSERT_TRUE(first->send(bytes_of_text("early")).ok());
  EXPECT_EQ(await(*raw_, Kind::peer_lost).connection, first);
  EXPECT_TRUE(seen_[server_.get()].empty());
}

TEST_F(Rails, PostsWaitForTheWelcome) {
  server_ = open_bundle(1);
  client_ = open_bundle(2);
  polled_ = {server_.get(), client_.get()};
  address_ = server_->listen(kTwoRails).value();
  Connection* connection = client_->connect(address_, Clock::now() + kRailsTimeout).value();
  EXPECT_TRUE(connection->send(bytes_of_text("first")).ok());
  int more = 0;
  while (connection->send(bytes_of_text("more")).ok()) ++more;
  await(*server_, Kind::connected);
  EXPECT_EQ(await(*server_, Kind::message).message, "first");
  for (int i = 0; i < more; ++i) EXPECT_EQ(await(*server_, Kind::message).message, "more");
}

TEST_F(Rails, APeerThatIsNoBundleIsLost) {
  raw_ = tcp::open({}).value();
  client_ = open_bundle(2);
  polled_ = {raw_.get(), client_.get()};
  const std::string address = std::string(kLanesPrefix) + raw_->listen("127.0.0.1:0").value();
  Connection* connection = client_->connect(address, Clock::now() + kRailsTimeout).value();
  Connection* accepted = await(*raw_, Kind::connected).connection;
  ASSERT_TRUE(accepted->send(bytes_of_text("greeting")).ok());
  EXPECT_EQ(await(*client_, Kind::peer_lost).connection, connection);
  turns(50ms);
  EXPECT_TRUE(seen_[client_.get()].empty());
}

TEST_F(Rails, AnIncompleteBundleIsClosedAtItsDeadline) {
  open_raw({.join = 200ms});
  Greeting greeting{.id = std::string(kBundleIdBytes, 'z'), .lanes = 3};
  for (; greeting.lane < 2; ++greeting.lane)
    ASSERT_TRUE(raw_lane(address_)->send(bytes_of_text(greeting.encode())).ok());
  await(*raw_, Kind::peer_lost);
  await(*raw_, Kind::peer_lost);
  EXPECT_TRUE(seen_[server_.get()].empty());
}

TEST_F(Rails, ManySilentLanesPushOutTheOldest) {
  open_raw({.joining = 4});
  Connection* oldest = raw_lane(address_);
  turns(50ms);
  for (int i = 0; i < 4; ++i) raw_lane(address_);
  EXPECT_EQ(await(*raw_, Kind::peer_lost).connection, oldest);
  turns(50ms);
  EXPECT_TRUE(seen_[raw_.get()].empty());
}

TEST_F(Rails, BadGreetingsCloseTheirLane) {
  open_raw();
  const Greeting good{.id = std::string(kBundleIdBytes, 'a'), .lanes = 2};
  expect_closed("no greeting");
  expect_closed(good.encode() + "x");
  expect_closed(Greeting{.id = good.id, .lane = 2, .lanes = 2}.encode());
  expect_closed(Greeting{.id = good.id, .lanes = kMaxLanes + 1}.encode());
  expect_closed(Greeting{.id = good.id, .lanes = 0}.encode());
}

TEST_F(Rails, AGreetingThatContradictsItsBundleIsRefused) {
  open_raw();
  const Greeting good{.id = std::string(kBundleIdBytes, 'b'), .lanes = 3};
  ASSERT_TRUE(raw_lane(address_)->send(bytes_of_text(good.encode())).ok());
  turns(50ms);
  expect_closed(good.encode());  // the same lane again
  expect_closed(Greeting{.id = good.id, .lane = 1, .lanes = 2}.encode());
}

TEST_F(Rails, ARailThatCannotBeReachedIsLeftOut) {
  server_ = open_bundle(1);
  client_ = open_bundle(2);
  polled_ = {server_.get(), client_.get()};
  std::string address = server_->listen("lanes:127.0.0.1:0").value();
  {
    const auto gone = tcp::open({}).value();
    address += "," + gone->listen("127.0.0.2:0").value();
  }
  Connection* connection = client_->connect(address, Clock::now() + kRailsTimeout).value();
  EXPECT_EQ(connection->lanes(), 2u);
  EXPECT_EQ(connection->path(), "tcp 1 of 2 rails × 2 streams (127.0.0.1)");
  EXPECT_TRUE(connection->left_out().starts_with("127.0.0.2: ")) << connection->left_out();
  const Seen connected = await(*server_, Kind::connected);
  ASSERT_NE(connected.connection, nullptr);
  EXPECT_EQ(connected.connection->lanes(), 2u);
}

TEST_F(Rails, NoRailAtAllIsAnError) {
  client_ = open_bundle(1);
  polled_ = {client_.get()};
  const auto failed = client_->connect("lanes:127.0.0.1:1,127.0.0.2:1", Clock::now() + kRailsTimeout);
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kUnavailable) << failed.status();
}

}  // namespace
}  // namespace gradrail::transport::rails
