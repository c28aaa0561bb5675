#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "base/net_address.h"
#include "tests/transport/tcp/fixture.h"

namespace gradrail::transport::tcp {
namespace {

using Kind = Completion::Kind;

TEST(TcpAddress, Parse) {
  EXPECT_EQ(parse_host_port("node7:2222")->host, "node7");
  EXPECT_EQ(parse_host_port("[fd00::1]:2222")->host, "fd00::1");
  EXPECT_EQ(parse_host_port(":0")->host, "");
  for (const char* bad :
       {"", "host", "host:", "host:x", "host:65536", "host:123456", "::1:22", "[::1]", "[]:1", "[::1:2", "host:-1"}) {
    EXPECT_EQ(parse_host_port(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(TcpConnect, RefusedSaysWhereAndWhatToDo) {
  std::string address;
  {
    Node gone;
    address = gone.listen();
  }
  Node client;
  const auto made = client.context->connect(address, in(5s));
  ASSERT_EQ(made.status().code(), absl::StatusCode::kUnavailable) << made.status();
  const std::string text(made.status().message());
  EXPECT_NE(text.find(address), std::string::npos) << text;
  EXPECT_NE(text.find("Connection refused (is the peer running"), std::string::npos) << text;
}

TEST(TcpConnect, SilentHostEndsAtTheDeadline) {
  // A listener with a full backlog drops connections, as a firewall does.
  FileDescriptor listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  const std::string address = local_address(listener.get()).text();
  RawPeer fills_it(address);
  Node client;
  absl::Status status;
  for (int i = 0; i < 4 && status.ok(); ++i) status = client.context->connect(address, in(300ms)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_NE(status.message().find(address), absl::string_view::npos) << status;
}

TEST(TcpConnect, UnknownHostAndBadAddresses) {
  Node client;
  EXPECT_EQ(client.context->connect("no-such-host.invalid:1", in(5s)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client.context->connect("nonsense", in(1s)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.context->connect("127.0.0.1:0", in(1s)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TcpConnect, SourceAddressIsUsed) {
  Node server;
  Node client({}, {.bind_host = "127.0.0.9"});
  const Connection* connection = client.connect(server.listen());
  ASSERT_NE(connection, nullptr);
  EXPECT_EQ(connection->describe().find("tcp 127.0.0.9:"), 0U) << connection->describe();
  EXPECT_EQ(open({.bind_host = "no-such-host.invalid"}).status().code(), absl::StatusCode::kInvalidArgument);
}

/// The congestion control of each TCP socket between two ports of this process. An inherited socket has another peer.
std::vector<std::string> congestion_controls() {
  std::set<std::string> own;
  std::vector<std::pair<std::string, std::string>> found;  // peer, name
  for (int fd = 0; fd < 1024; ++fd) {
    std::array<char, 16> name{};
    socklen_t bytes = name.size();
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &bytes) != 0) continue;
    own.insert(local_address(fd).text());
    found.emplace_back(peer_address(fd).text(), name.data());
  }
  std::vector<std::string> names;
  for (const auto& [peer, name] : found)
    if (own.contains(peer)) names.push_back(name);
  return names;
}

TEST(TcpConnect, AConnectionWithinTheHostIsNotPaced) {
  Node client, server;
  ASSERT_NE(client.connect(server.listen()), nullptr);
  for (const TimePoint end = in(kTimeout); server.count(Kind::connected) == 0 && Clock::now() < end;) server.poll();
  EXPECT_EQ(congestion_controls(), (std::vector<std::string>{"reno", "reno"}));
}

TEST(TcpListen, AddressInUseAndSeveralOfOneContext) {
  Node first;
  const std::string address = first.listen();
  Node second;
  EXPECT_EQ(second.context->listen(address).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(first.context->listen("127.0.0.1:0").ok()) << "each rail has an address";
  EXPECT_EQ(second.context->listen("192.0.2.77:0").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(second.context->listen("localhost:0").ok()) << "a failed listen must not stick";
}

TEST(TcpListen, Ipv6) {
  Node server;
  const auto address = server.context->listen("[::1]:0");
  if (!address.ok()) GTEST_SKIP() << "no IPv6 here: " << address.status();
  EXPECT_EQ(address->find("[::1]:"), 0U) << *address;
  Node client;
  ASSERT_TRUE(client.connect(*address)->send(bytes_of("six")).ok());
  ASSERT_TRUE(pump({&server, &client}, [&] { return server.find(Kind::message) != nullptr; }));
  EXPECT_EQ(server.texts.back(), "six");
}

TEST(TcpDatapath, SmallMessageOvertakes64MiBPut) {
  Pair pair;
  std::vector<std::byte> source = pattern(64 << 20, 1);
  std::vector<std::byte> target(source.size());
  const auto from = pair.client.add(source);
  const auto to = pair.server.add(target);
  const RemoteRegion remote = *pair.to_server->import(to->key());
  ASSERT_TRUE(pair.to_server->put({from.get(), 0, source.size()}, {remote}, {.immediate = 9, .tag = 4}).ok());
  ASSERT_TRUE(pair.to_server->send(bytes_of("overtakes")).ok());
  ASSERT_TRUE(pair.pump_both([&] { return pair.server.find(Kind::put_arrived) && pair.client.find(Kind::put_done); }));
  EXPECT_LT(pair.server.position(Kind::message), pair.server.position(Kind::put_arrived));
  EXPECT_EQ(target, source);
  EXPECT_EQ(pair.client.find(Kind::put_done)->tag, 4U);
}

TEST(TcpDatapath, SmallGetOvertakesPutsOfTheAnsweringSide) {
  Pair pair;
  std::vector<std::byte> bulk = pattern(64 << 20, 1);
  std::vector<std::byte> landing(bulk.size());
  std::vector<std::byte> small(100);
  const auto from = pair.server.add(bulk);
  const auto to = pair.client.add(landing);
  const auto into = pair.client.add(small, Access::local);
  ASSERT_TRUE(
      pair.to_client->put({from.get(), 0, bulk.size()}, {*pair.to_client->import(to->key())}, {.immediate = 1}).ok());
  ASSERT_TRUE(pair.to_server->get({into.get(), 0, 100}, {*pair.to_server->import(from->key()), 50}, 7).ok());
  ASSERT_TRUE(pair.pump_both([&] { return pair.client.find(Kind::put_arrived) && pair.client.find(Kind::get_done); }));
  EXPECT_LT(pair.client.position(Kind::get_done), pair.client.position(Kind::put_arrived));
  EXPECT_TRUE(std::equal(small.begin(), small.end(), bulk.begin() + 50));
}

TEST(TcpDatapath, HugePutDoesNotStarveAnotherConnection) {
  Pair pair;
  Node other;
  Connection* quiet = other.connect(pair.server_address);
  std::vector<std::byte> source = pattern(64 << 20, 1);
  std::vector<std::byte> target(source.size());
  const auto from = pair.client.add(source);
  const auto to = pair.server.add(target);
  const RemoteRegion remote = *pair.to_server->import(to->key());
  ASSERT_TRUE(pair.to_server->put({from.get(), 0, source.size()}, {remote}, {.immediate = 9}).ok());
  ASSERT_TRUE(quiet->send(bytes_of("me too")).ok());
  ASSERT_TRUE(
      pump({&pair.server, &pair.client, &other}, [&] { return pair.server.find(Kind::put_arrived) != nullptr; }));
  EXPECT_LT(pair.server.position(Kind::message), pair.server.position(Kind::put_arrived));
}

TEST(TcpDatapath, OneSlotOfRoomIsSharedByAllConnections) {
  // Each poll returns one completion; a connection that always has one must not be the only one heard.
  Pair pair;
  Node other;
  Connection* quiet = other.connect(pair.server_address);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pair.to_server->send(bytes_of("chatter")).ok());
  ASSERT_TRUE(quiet->send(bytes_of("quiet")).ok());
  const auto heard_quiet = [&] {
    return std::find(pair.server.texts.begin(), pair.server.texts.end(), "quiet") != pair.server.texts.end();
  };
  for (const TimePoint deadline = in(kTimeout); !heard_quiet() && Clock::now() < deadline;) {
    pair.server.poll(1);
    other.poll();
  }
  ASSERT_TRUE(heard_quiet());
  EXPECT_LT(pair.server.count(Kind::message), 200U);
  ASSERT_TRUE(pair.pump_both([&] { return pair.server.count(Kind::message) == 1001; }));
}

TEST(TcpDatapath, FourThousandPeersAtOneContext) {
  constexpr size_t kPeers = 4096;
  const absl::Status allowed = allow_open_files(2 * kPeers + 256);
  if (!allowed.ok()) GTEST_SKIP() << allowed;
  Node server, client;
  const std::string address = server.listen();
  std::vector<Connection*> connections;
  while (connections.size() < kPeers) {
    connections.push_back(client.connect(address));
    ASSERT_NE(connections.back(), nullptr);
    if (connections.size() % 64 != 0) continue;
    ASSERT_TRUE(pump({&server, &client}, [&] { return server.count(Kind::connected) == connections.size(); }));
  }
  for (Connection* each : connections) ASSERT_TRUE(each->send(bytes_of("hello")).ok());
  ASSERT_TRUE(pump({&server, &client}, [&] { return server.count(Kind::message) == kPeers; }));
  for (Connection* each : connections) client.context->close(each);
  ASSERT_TRUE(pump({&server, &client}, [&] { return server.count(Kind::peer_lost) == kPeers; }));
}

TEST(TcpDatapath, PartialWritesBothWaysWithTinyBuffers) {
  Tuning tuning;
  tuning.socket.buffer_bytes = 32 * 1024;
  Pair pair(tuning);
  constexpr size_t kBytes = 4 << 20;
  std::vector<std::byte> a = pattern(kBytes, 1);
  std::vector<std::byte> b = pattern(kBytes, 2);
  std::vector<std::byte> at_server(kBytes);
  std::vector<std::byte> at_client(kBytes);
  std::vector<std::byte> got(kBytes);
  const auto ra = pair.client.add(a);
  const auto rb = pair.server.add(b);
  const auto rs = pair.server.add(at_server);
  const auto rc = pair.client.add(at_client);
  const auto rg = pair.client.add(got, Access::local);
  const RemoteRegion server_target = *pair.to_server->import(rs->key());
  const RemoteRegion client_target = *pair.to_client->import(rc->key());
  constexpr size_t kPiece = 100'003;
  for (size_t at = 0; at < kBytes; at += kPiece) {
    const size_t bytes = std::min(kPiece, kBytes - at);
    ASSERT_TRUE(pair.to_server->put({ra.get(), at, bytes}, {server_target, at}, {.immediate = at}).ok());
    ASSERT_TRUE(pair.to_client->put({rb.get(), at, bytes}, {client_target, at}, {.immediate = at}).ok());
    ASSERT_TRUE(pair.to_server->send(bytes_of("between")).ok());
  }
  ASSERT_TRUE(pair.to_server->get({rg.get(), 0, kBytes}, {*pair.to_server->import(rb->key())}, 1).ok());
  const size_t pieces = (kBytes + kPiece - 1) / kPiece;
  ASSERT_TRUE(pair.pump_both([&] {
    return pair.server.count(Kind::put_arrived) == pieces && pair.client.count(Kind::put_arrived) == pieces &&
           pair.client.find(Kind::get_done) && pair.server.count(Kind::message) == pieces;
  }));
  EXPECT_EQ(at_server, a);
  EXPECT_EQ(at_client, b);
  EXPECT_EQ(got, b);
  uint64_t expected = 0;
  for (const Completion& each : pair.server.seen) {
    if (each.kind != Kind::put_arrived) continue;
    EXPECT_EQ(each.immediate, expected);
    expected += kPiece;
  }
}

TEST(TcpDatapath, PayloadsOfAllSizesAlternate) {
  // Each size changes how many bytes the next system call takes with a header.
  constexpr size_t kSizes[] = {0, 1, 100, 976, 977, 8191, 8192, 8193, 20'000, 24'576, 24'577, 32'768, 70'000};
  Pair pair;
  const std::vector<std::byte> source = pattern(70'000, 3);
  std::vector<std::byte> sent = source;
  const auto from = pair.client.add(sent);
  uint64_t number = 0;
  for (const size_t first : kSizes) {
    for (const size_t second : kSizes) {
      std::vector<std::byte> target(140'000);
      const auto to = pair.server.add(target);
      const RemoteRegion remote = *pair.to_server->import(to->key());
      ASSERT_TRUE(pair.to_server->put({from.get(), 0, first}, {remote}, {}).ok());
      ASSERT_TRUE(pair.to_server->put({from.get(), 0, second}, {remote, 70'000}, {.immediate = ++number}).ok());
      ASSERT_TRUE(pair.pump_both([&] { return pair.server.count(Kind::put_arrived) == number; })) << first << second;
      ASSERT_TRUE(std::equal(target.begin(), target.begin() + first, source.begin())) << first << " then " << second;
      ASSERT_TRUE(std::equal(target.begin() + 70'000, target.begin() + 70'000 + second, source.begin()))
          << first << " then " << second;
      ASSERT_EQ(std::count(target.begin() + first, target.begin() + 70'000, std::byte{0}), 70'000 - first);
    }
  }
}

TEST(TcpDatapath, BlockingOwnersLoseNoWakeUp) {
  Pair pair;
  std::vector<std::byte> source = pattern(1 << 20, 1);
  std::vector<std::byte> target(source.size());
  const auto from = pair.client.add(source);
  const auto to = pair.server.add(target);
  const RemoteRegion remote = *pair.to_server->import(to->key());
  const auto block_and_poll = [](Node& node, size_t room) {
    if (node.context->arm()) {
      pollfd waiting = {.fd = node.context->wait_fd(), .events = POLLIN, .revents = 0};
      if (::poll(&waiting, 1, 5000) == 0) return false;
    }
    node.poll(room);
    return true;
  };
  std::thread sender([&] {
    for (uint64_t i = 0; i < 300;) {
      i += pair.to_server->put({from.get(), 0, 1 + i * 3000}, {remote}, {.immediate = i, .tag = i + 1}).ok();
      while (pair.client.count(Kind::put_done) < i) ASSERT_TRUE(block_and_poll(pair.client, 1)) << "at put " << i;
    }
  });
  bool woken = true;
  while (woken && pair.server.count(Kind::put_arrived) < 300) woken = block_and_poll(pair.server, 1);
  sender.join();
  EXPECT_EQ(pair.server.count(Kind::put_arrived), 300U);
}

TEST(TcpDatapath, PutWithoutDoorbellGoesOutWithTheNextPoll) {
  Pair pair;
  std::vector<std::byte> source = pattern(64, 1);
  std::vector<std::byte> target(64);
  const auto from = pair.client.add(source);
  const auto to = pair.server.add(target);
  const RemoteRegion remote = *pair.to_server->import(to->key());
  ASSERT_TRUE(pair.pump_both([&] { return pair.client.context->arm(); })) << "nothing to do at first";
  ASSERT_TRUE(pair.to_server->put({from.get(), 0, 64}, {remote}, {.tag = 1}).ok());
  EXPECT_FALSE(pair.client.context->arm());
  pair.client.poll();
  EXPECT_EQ(pair.client.count(Kind::put_done), 1U);
  EXPECT_TRUE(pair.client.context->arm());
  ASSERT_TRUE(pair.pump_both([&] { return target == source; }));
  EXPECT_EQ(pair.server.count(Kind::put_arrived), 0U);
}

TEST(TcpDatapath, QueueIsBounded) {
  Pair pair;
  std::vector<std::byte> memory(64);
  const auto from = pair.client.add(memory);
  const auto to = pair.server.add(memory);
  const RemoteRegion remote = *pair.to_server->import(to->key());
  absl::Status status;
  int posted = 0;
  for (; status.ok() && posted < 5000; ++posted) status = pair.to_server->put({from.get(), 0, 64}, {remote}, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(posted, 1025);
  ASSERT_TRUE(pair.pump_both([&] { return pair.to_server->put({from.get(), 0, 64}, {remote}, {}).ok(); }));
}

TEST(TcpDatapath, SlicesAreCheckedHere) {
  Pair pair;
  std::vector<std::byte> memory(64);
  const auto from = pair.client.add(memory);
  const auto to = pair.server.add(memory);
  const RemoteRegion remote = *pair.to_server->import(to->key());
  Connection& peer = *pair.to_server;
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(peer.put({from.get(), 60, 5}, {remote}, {}).code(), kInvalid);
  EXPECT_EQ(peer.put({from.get(), SIZE_MAX, 2}, {remote}, {}).code(), kInvalid);
  EXPECT_EQ(peer.put({from.get(), 0, 5}, {remote, 60}, {}).code(), kInvalid);
  EXPECT_EQ(peer.put({from.get(), 0, 5}, {remote, UINT64_MAX - 1}, {}).code(), kInvalid);
  EXPECT_EQ(peer.put({from.get(), 0, 5}, {RemoteRegion{9}}, {}).code(), kInvalid);
  EXPECT_EQ(peer.put({nullptr, 0, 5}, {remote}, {}).code(), kInvalid);
  EXPECT_EQ(peer.get({from.get(), 0, 5}, {remote, 60}, 1).code(), kInvalid);
  EXPECT_EQ(peer.send(std::vector<std::byte>(kMaxMessageBytes + 1)).code(), kInvalid);
  EXPECT_EQ(peer.map(remote).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(peer.import("shm:whatever").status().code(), kInvalid);
  // Nothing but a notice needs neither memory nor region.
  ASSERT_TRUE(peer.put({}, {}, {.immediate = 77}).ok());
  ASSERT_TRUE(pair.pump_both([&] { return pair.server.find(Kind::put_arrived) != nullptr; }));
  EXPECT_EQ(pair.server.find(Kind::put_arrived)->immediate, 77U);
}

TEST(TcpLoss, BothSidesReadWhyAPutWasRefused) {
  Pair pair;
  std::vector<std::byte> memory(64);
  const auto from = pair.client.add(memory);
  const auto to = pair.server.add(memory, Access::remote_read);
  const RemoteRegion remote = *pair.to_server->import(to->key());
  ASSERT_TRUE(pair.to_server->put({from.get(), 0, 8}, {remote}, {.immediate = 1}).ok());
  ASSERT_TRUE(pair.pump_both([&] { return pair.server.find(Kind::peer_lost) && pair.client.find(Kind::peer_lost); }));
  EXPECT_NE(pair.client.lost_cause().find("peer refused: put to a region not remotely writable"), std::string::npos)
      << pair.client.lost_cause();
  EXPECT_NE(pair.server.lost_cause().find("refused the peer: put to a region not remotely writable"), std::string::npos)
      << pair.server.lost_cause();
  for (int i = 0; i < 100; ++i) pair.pump_both([] { return true; });
  EXPECT_EQ(pair.client.count(Kind::peer_lost), 1U);
  EXPECT_EQ(pair.to_server->put({from.get(), 0, 8}, {remote}, {}).code(), absl::StatusCode::kUnavailable);
}

TEST(TcpLoss, RefusalIsReadUnderAFloodOfPuts) {
  Pair pair;
  std::vector<std::byte> source = pattern(16 << 20, 1);
  std::vector<std::byte> target(source.size());
  const auto from = pair.client.add(source);
  auto to = pair.server.add(target);
  const RemoteRegion remote = *pair.to_server->import(to->key());
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(pair.to_server->put({from.get(), 0, source.size()}, {remote}, {.immediate = 1}).ok());
  }
  ASSERT_TRUE(pair.pump_both([&] { return target[source.size() / 2] == source[source.size() / 2]; }));
  to.reset();
  ASSERT_TRUE(pair.pump_both([&] { return pair.server.find(Kind::peer_lost) && pair.client.find(Kind::peer_lost); }));
  EXPECT_NE(pair.client.lost_cause().find("peer refused: put to a region that is no longer registered"),
            std::string::npos)
      << pair.client.lost_cause();
}

TEST(TcpLoss, AnswerFromARegionThatGoesAwayIsCutShort) {
  Pair pair;
  std::vector<std::byte> source = pattern(64 << 20, 1);
  std::vector<std::byte> target(source.size());
  auto from = pair.server.add(source);
  const auto into = pair.client.add(target, Access::local);
  ASSERT_TRUE(pair.to_server->get({into.get(), 0, target.size()}, {*pair.to_server->import(from->key())}, 1).ok());
  ASSERT_TRUE(pair.pump_both([&] { return target[1 << 20] == source[1 << 20]; }));
  from.reset();
  std::vector<std::byte>().swap(source);  // a sanitizer detects a later read of it
  ASSERT_TRUE(pair.pump_both([&] { return pair.server.find(Kind::peer_lost) && pair.client.find(Kind::peer_lost); }));
  EXPECT_EQ(pair.client.count(Kind::get_done), 0U);
  EXPECT_NE(pair.client.lost_cause().find("no longer registered"), std::string::npos) << pair.client.lost_cause();
}

TEST(TcpLoss, WhatArrivedComesBeforePeerLost) {
  Pair pair;
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(pair.to_server->send(bytes_of("last words")).ok());
  pair.client.context->close(pair.to_server);
  ASSERT_TRUE(pair.pump_both([&] { return pair.server.find(Kind::peer_lost) != nullptr; }));
  EXPECT_EQ(pair.server.count(Kind::message), 50U);
  EXPECT_EQ(pair.server.seen.back().kind, Kind::peer_lost);
  EXPECT_NE(pair.server.lost_cause().find("peer closed the connection"), std::string::npos) << pair.server.lost_cause();
  EXPECT_EQ(pair.to_client->send(bytes_of("x")).code(), absl::StatusCode::kUnavailable);
  pair.server.context->close(pair.to_client);
}

TEST(TcpLoss, ContextDestroyedUnderItsPeer) {
  Node server;
  const std::string address = server.listen();
  auto client = std::make_unique<Node>();
  client->connect(address);
  ASSERT_TRUE(pump({&server, client.get()}, [&] { return server.find(Kind::connected) != nullptr; }));
  client.reset();
  EXPECT_TRUE(pump({&server}, [&] { return server.find(Kind::peer_lost) != nullptr; }));
}

}  // namespace
}  // namespace gradrail::transport::tcp
