#include <dirent.h>

#include "conformance/peer.h"
#include "fmt/format.h"

namespace gradrail::conformance {
namespace {

/// A listener's address after the listener has gone.
std::string unused_address(const transport::Transport& transport) {
  Side gone(transport);
  return gone.listen();
}

size_t open_descriptors() {
  size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

/// A closed connection may linger to send its final bytes, but not for ever.
void expect_no_more(Side& side, size_t before) {
  side.await_that([&] { return open_descriptors() <= before; }, "the descriptors are closed again");
}

/// Connecting there must fail with the address in the text, at once or (where connecting is answered later) by
/// peer_lost.
void expect_refused(Side& side, const std::string& address) {
  const auto connected = side.context().connect(address, Clock::now() + std::chrono::seconds(5));
  absl::Status status = connected.status();
  if (connected.ok()) status = side.await(Kind::peer_lost, *connected, std::chrono::seconds(5)).cause;
  EXPECT_FALSE(status.ok()) << address;
  EXPECT_NE(status.message().find(address.substr(0, 24)), absl::string_view::npos) << status;
}

TEST_P(Conformance, connects_and_accepts) {
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    Connection* connection = side.connect(channel.receive());
    side.send(connection, "hello");
    EXPECT_EQ(side.await(Kind::message, connection).message, "welcome");
    EXPECT_FALSE(connection->describe().empty());
    side.serve_until_stopped(channel);
  });
  Side side(*GetParam().transport);
  peer->channel().send(side.listen());
  Connection* connection = side.accept();
  connection->set_user_data(42);
  const Event hello = side.await(Kind::message);
  EXPECT_EQ(hello.connection, connection);
  EXPECT_EQ(hello.connection->user_data(), 42u);
  EXPECT_EQ(hello.message, "hello");
  EXPECT_FALSE(connection->describe().empty());
  side.send(connection, "welcome");
  peer->channel().send("end");
  peer->join();
}

TEST_P(Conformance, refused_connection_names_the_address) {
  const std::string address = unused_address(*GetParam().transport);
  Side side(*GetParam().transport);
  expect_refused(side, address);
}

TEST_P(Conformance, bad_addresses_are_errors) {
  Side side(*GetParam().transport);
  for (const std::string& address : {std::string("no such place"), std::string("256.1.1.1:99999"), std::string("::"),
                                     std::string("/"), std::string(5000, 'x')}) {
    SCOPED_TRACE(address.substr(0, 40));
    expect_refused(side, address);
  }
  EXPECT_FALSE(side.context().connect("", Clock::now() + std::chrono::seconds(1)).ok());
}

TEST_P(Conformance, listening_twice_on_one_address_is_refused) {
  Side first(*GetParam().transport);
  const std::string address = first.listen();
  Side second(*GetParam().transport);
  const auto listening = second.context().listen(address);
  EXPECT_EQ(listening.status().code(), absl::StatusCode::kAlreadyExists) << listening.status();
}

TEST_P(Conformance, address_is_free_again_after_its_context) {
  const std::string address = unused_address(*GetParam().transport);
  Side second(*GetParam().transport);
  const auto listening = second.context().listen(address);
  EXPECT_TRUE(listening.ok()) << listening.status();
}

TEST_P(Conformance, many_connections_talk_at_once) {
  constexpr int kPeers = 4;
  constexpr int kConnectionsEach = 16;
  constexpr int kRounds = 20;
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < kPeers; ++i) {
    peers.push_back(start_peer(GetParam(), [i](Side& side, Channel& channel) {
      const std::string address = channel.receive();
      std::vector<Connection*> connections;
      for (int c = 0; c < kConnectionsEach; ++c) connections.push_back(side.connect(address));
      for (int round = 0; round < kRounds; ++round) {
        for (int c = 0; c < kConnectionsEach; ++c) side.send(connections[c], fmt::format("{}/{}/{}", i, c, round));
      }
      for (int c = 0; c < kConnectionsEach; ++c) {
        for (int round = 0; round < kRounds; ++round) {
          EXPECT_EQ(side.await(Kind::message, connections[c]).message, fmt::format("{}/{}/{}!", i, c, round));
        }
      }
      channel.send("all echoed");
      side.serve_until_stopped(channel);
    }));
  }
  Side side(*GetParam().transport);
  const std::string address = side.listen();
  for (const auto& peer : peers) peer->channel().send(address);
  for (int i = 0; i < kPeers * kConnectionsEach * kRounds; ++i) {
    const Event event = side.await(Kind::message);
    side.send(event.connection, event.message + "!");
  }
  for (const auto& peer : peers) EXPECT_EQ(side.serve_until_stopped(peer->channel()), "all echoed");
  for (const auto& peer : peers) peer->channel().send("end");
  for (const auto& peer : peers) peer->join();
}

TEST_P(Conformance, connection_storms_leak_no_descriptors) {
  constexpr int kStorm = 200;
  const auto peer = start_peer(GetParam(), [](Side& side, Channel& channel) {
    const std::string address = channel.receive();
    size_t before = 0;
    for (int i = 0; i <= kStorm; ++i) {
      Connection* connection = side.connect(address);
      side.send(connection, "x");
      side.await(Kind::message, connection);
      side.close(connection);
      if (i == 0) before = open_descriptors();  // after one round: what is opened once and kept is no leak
    }
    if (channel.receive() == "processes") expect_no_more(side, before);  // threads share the listener's table
  });
  Side side(*GetParam().transport);
  peer->channel().send(side.listen());
  size_t before = 0;
  for (int i = 0; i <= kStorm; ++i) {
    Connection* connection = side.accept();
    side.await(Kind::message, connection);
    side.send(connection, "y");
    side.await(Kind::peer_lost, connection);
    side.close(connection);
    if (i == 0) before = open_descriptors();
  }
  peer->channel().send(GetParam().peers == Peers::threads ? "threads" : "processes");
  peer->join();
  expect_no_more(side, before);
}

}  // namespace
}  // namespace gradrail::conformance
