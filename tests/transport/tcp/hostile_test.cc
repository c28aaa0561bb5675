// Peers that are none, or break the rules. An honest peer must never notice.
#include <linux/filter.h>
#include <poll.h>
#include <sys/resource.h>

#include <sstream>

#include "tests/base/captured_log.h"
#include "tests/transport/tcp/fixture.h"

namespace gradrail::transport::tcp {
namespace {

class TcpHostile : public ::testing::Test {
 protected:
  TcpHostile() : server_(quick()), honest_(quick()) {
    address_ = server_.listen();
    region_ = server_.add(memory_, Access::remote_write);
    readable_ = server_.add(secret_, Access::remote_read);
  }

  static Tuning quick() {
    Tuning tuning;
    tuning.hello_timeout = 200ms;
    tuning.max_pending_connections = 8;
    return tuning;
  }

  FrameHeader put(uint64_t offset, uint64_t length) {
    const RegionKey key = *RegionKey::parse(region_->key());
    return {FrameType::put, true, key.region, key.epoch, key.token, offset, length, 1};
  }

  /// Waits until the server has hung up on `raw`.
  ::testing::AssertionResult is_closed(RawPeer& raw) {
    const bool closed = pump({&server_}, [&] {
      raw.hear();
      return raw.closed;
    });
    return closed ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << "still open";
  }

  /// A greeted peer says `frame` and is refused with `reason`; nothing was written.
  void expect_refusal(const FrameHeader& frame, const std::string& reason) {
    RawPeer raw(address_);
    raw.start_handshake();
    raw.say(frame);
    const std::string payload(4096, '!');
    raw.say(payload.data(), payload.size());
    EXPECT_TRUE(is_closed(raw));
    EXPECT_NE(raw.heard.find(reason), std::string::npos) << "heard: " << raw.heard.substr(0, 300);
    ASSERT_TRUE(pump({&server_}, [&] { return server_.find(Completion::Kind::peer_lost) != nullptr; }));
    EXPECT_NE(server_.lost_cause().find(reason), std::string::npos) << server_.lost_cause();
    EXPECT_EQ(server_.count(Completion::Kind::put_arrived), 0U);
    EXPECT_EQ(memory_, std::vector<std::byte>(64));
    expect_honest_peer_served();
  }

  void expect_honest_peer_served() {
    server_.seen.clear();
    server_.texts.clear();
    Connection* connection = honest_.connect(address_);
    ASSERT_NE(connection, nullptr);
    ASSERT_TRUE(connection->send(bytes_of("hello there")).ok());
    EXPECT_TRUE(pump({&server_, &honest_}, [&] { return server_.find(Completion::Kind::message) != nullptr; }));
    honest_.context->close(connection);
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(64);
  std::vector<std::byte> secret_ = std::vector<std::byte>(64);
  CapturedLog log_;
  Node server_;
  Node honest_;
  std::string address_;
  std::unique_ptr<MemoryRegion> region_;
  std::unique_ptr<MemoryRegion> readable_;
};

TEST_F(TcpHostile, GarbageIsClosedAtOnceAndReportsNothing) {
  RawPeer raw(address_);
  raw.say("GET / HTTP/1.1\r\n\r\n", 18);
  EXPECT_TRUE(is_closed(raw));
  EXPECT_TRUE(server_.seen.empty());
  EXPECT_TRUE(raw.heard.empty());
  EXPECT_NE(log_.text().find("not a gradrail peer"), std::string::npos) << log_.text();
  expect_honest_peer_served();
}

TEST_F(TcpHostile, HalfHeaderIsClosedAtTheDeadline) {
  RawPeer raw(address_);
  const HeaderBytes hello = encode({.type = FrameType::hello, .token = kHelloMagic, .value = kProtocolVersion});
  raw.say(hello.data(), 20);
  const TimePoint start = Clock::now();
  EXPECT_TRUE(is_closed(raw));
  EXPECT_GE(Clock::now() - start, 150ms);
  EXPECT_TRUE(server_.seen.empty());
}

TEST_F(TcpHostile, SilentConnectionWakesABlockedOwnerAtTheDeadline) {
  RawPeer raw(address_);
  const TimePoint deadline = in(kTimeout);
  while (!raw.closed && Clock::now() < deadline) {
    if (server_.context->arm()) {
      pollfd waiting = {.fd = server_.context->wait_fd(), .events = POLLIN, .revents = 0};
      ASSERT_GT(::poll(&waiting, 1, 10'000), 0) << "nothing woke the owner";
    }
    server_.poll();
    raw.hear();
  }
  EXPECT_TRUE(raw.closed);
  expect_honest_peer_served();
}

TEST_F(TcpHostile, FirstFrameMustBeAHello) {
  RawPeer raw(address_);
  raw.say(put(0, 8));
  EXPECT_TRUE(is_closed(raw));
  EXPECT_TRUE(server_.seen.empty());
}

TEST_F(TcpHostile, HelloOfAnotherProtocol) {
  RawPeer raw(address_);
  raw.say(FrameHeader{.type = FrameType::hello, .token = 1, .value = kProtocolVersion});
  EXPECT_TRUE(is_closed(raw));
  EXPECT_TRUE(server_.seen.empty());
}

TEST_F(TcpHostile, OtherVersionGetsTheReason) {
  RawPeer raw(address_);
  raw.start_handshake(99);
  EXPECT_TRUE(is_closed(raw));
  EXPECT_NE(raw.heard.find("protocol version 99, this side has version 1"), std::string::npos) << raw.heard;
  EXPECT_NE(log_.text().find("protocol version 99"), std::string::npos) << log_.text();
}

TEST_F(TcpHostile, ConnectingToAnotherVersionGetsTheReason) {
  const FileDescriptor listener = *listen_at(resolve({"127.0.0.1", 0})->front());
  Connection* connection = honest_.connect(local_address(listener.get()).text());
  pollfd waiting = {.fd = listener.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&waiting, 1, 10'000), 1);
  RawPeer raw(FileDescriptor(accept(listener.get(), nullptr, nullptr)));
  raw.start_handshake(99);
  ASSERT_TRUE(pump({&honest_}, [&] { return honest_.find(Completion::Kind::peer_lost) != nullptr; }));
  EXPECT_NE(honest_.lost_cause().find("protocol version 99"), std::string::npos) << honest_.lost_cause();
  EXPECT_EQ(connection->send({}).code(), absl::StatusCode::kUnavailable);
}

TEST_F(TcpHostile, ConnectingToAnotherProtocolGetsTheReason) {
  const FileDescriptor listener = *listen_at(resolve({"127.0.0.1", 0})->front());
  honest_.connect(local_address(listener.get()).text());
  pollfd waiting = {.fd = listener.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&waiting, 1, 10'000), 1);
  RawPeer raw(FileDescriptor(accept(listener.get(), nullptr, nullptr)));
  raw.say("SSH-2.0\r\n", 9);
  ASSERT_TRUE(pump({&honest_}, [&] { return honest_.find(Completion::Kind::peer_lost) != nullptr; }));
  EXPECT_NE(honest_.lost_cause().find("not a gradrail peer"), std::string::npos) << honest_.lost_cause();
}

TEST_F(TcpHostile, DamagedHeader) {
  RawPeer raw(address_);
  raw.start_handshake();
  HeaderBytes bad = encode(put(0, 8));
  bad[30] ^= std::byte{1};
  raw.say(bad);
  raw.say("12345678", 8);
  EXPECT_TRUE(is_closed(raw));
  EXPECT_NE(raw.heard.find("crc"), std::string::npos);
  EXPECT_EQ(memory_, std::vector<std::byte>(64));
  expect_honest_peer_served();
}

TEST_F(TcpHostile, WrongToken) {
  FrameHeader frame = put(0, 8);
  frame.token ^= 1;
  expect_refusal(frame, "put with a wrong key");
}
TEST_F(TcpHostile, UnknownRegion) {
  FrameHeader frame = put(0, 8);
  frame.region = 12345;
  expect_refusal(frame, "put to a region that does not exist");
}
TEST_F(TcpHostile, NoRegionCarriesNoBytes) {
  FrameHeader frame = put(0, 8);
  frame.region = kNoRegion;
  expect_refusal(frame, "put to a region that does not exist");
}
TEST_F(TcpHostile, OutOfBounds) {
  expect_refusal(put(12, 99), "put outside region (offset 12, length 99, region 64 bytes)");
}
TEST_F(TcpHostile, OffsetOverflow) { expect_refusal(put(UINT64_MAX - 3, 8), "put outside region"); }
TEST_F(TcpHostile, DeregisteredRegion) {
  const FrameHeader frame = put(0, 8);
  region_.reset();
  expect_refusal(frame, "no longer registered");
}
TEST_F(TcpHostile, ReadOnlyRegion) {
  const RegionKey key = *RegionKey::parse(readable_->key());
  expect_refusal({FrameType::put, true, key.region, key.epoch, key.token, 0, 8, 1}, "not remotely writable");
}
TEST_F(TcpHostile, WriteOnlyRegion) {
  FrameHeader frame = put(0, 8);
  frame.type = FrameType::get_request;
  frame.notify = false;
  expect_refusal(frame, "not remotely readable");
}
TEST_F(TcpHostile, HugeGet) {
  const RegionKey key = *RegionKey::parse(readable_->key());
  expect_refusal({FrameType::get_request, false, key.region, key.epoch, key.token, 1, UINT64_MAX - 1, 1},
                 "get outside region");
}
TEST_F(TcpHostile, UnrequestedAnswer) { expect_refusal({.type = FrameType::get_data, .length = 8}, "not requested"); }
TEST_F(TcpHostile, SecondHello) {
  expect_refusal({.type = FrameType::hello, .token = kHelloMagic, .value = kProtocolVersion}, "second hello");
}
TEST_F(TcpHostile, OversizedMessage) {
  expect_refusal({.type = FrameType::message, .length = kMaxMessageBytes + 1}, "more than");
}

TEST_F(TcpHostile, RefusalTextCannotDriveATerminal) {
  const FileDescriptor listener = *listen_at(resolve({"127.0.0.1", 0})->front());
  honest_.connect(local_address(listener.get()).text());
  pollfd waiting = {.fd = listener.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&waiting, 1, 10'000), 1);
  RawPeer raw(FileDescriptor(accept(listener.get(), nullptr, nullptr)));
  const std::string refusal = refusal_frame("bad\x1b[2J\n");
  raw.say(refusal.data(), refusal.size());
  ASSERT_TRUE(pump({&honest_}, [&] { return honest_.find(Completion::Kind::peer_lost) != nullptr; }));
  EXPECT_NE(honest_.lost_cause().find("peer refused: bad?[2J?"), std::string::npos) << honest_.lost_cause();
}

TEST_F(TcpHostile, MidPutLossNotifiesNothing) {
  RawPeer raw(address_);
  raw.start_handshake();
  raw.say(put(0, 64));
  raw.say("half", 4);
  ASSERT_TRUE(pump({&server_}, [&] { return server_.find(Completion::Kind::connected) != nullptr; }));
  raw.hang_up();
  ASSERT_TRUE(pump({&server_}, [&] { return server_.find(Completion::Kind::peer_lost) != nullptr; }));
  EXPECT_EQ(server_.count(Completion::Kind::put_arrived), 0U);
  EXPECT_NE(server_.lost_cause().find("in the middle of a put"), std::string::npos) << server_.lost_cause();
}

TEST_F(TcpHostile, RegionThatGoesAwayMidPutIsNotWritten) {
  RawPeer raw(address_);
  raw.start_handshake();
  raw.say(put(0, 64));
  raw.say("half", 4);
  ASSERT_TRUE(pump({&server_}, [&] { return memory_[3] == std::byte{'f'}; }));
  region_.reset();
  raw.say("more", 4);
  ASSERT_TRUE(pump({&server_}, [&] { return server_.find(Completion::Kind::peer_lost) != nullptr; }));
  EXPECT_EQ(memory_[4], std::byte{0});
  EXPECT_TRUE(is_closed(raw));
  EXPECT_NE(raw.heard.find("no longer registered"), std::string::npos);
}

class TcpVanished : public ::testing::Test {
 protected:
  static Tuning impatient() {
    Tuning tuning;
    tuning.socket.vanish_timeout = 1s;
    return tuning;
  }
  TcpVanished() : server_(impatient()), raw_(server_.listen()) {
    raw_.start_handshake();
    EXPECT_TRUE(pump({&server_}, [&] { return server_.find(Completion::Kind::connected) != nullptr; }));
    connection_ = server_.find(Completion::Kind::connected)->connection;
  }
  /// From now on the peer's kernel sees nothing of ours, as if its host were gone.
  void cut_the_cable() {
    sock_filter drop_all = {.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0};
    const sock_fprog program = {.len = 1, .filter = &drop_all};
    ASSERT_EQ(setsockopt(raw_.fd(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0) << strerror(errno);
  }
  void expect_loss() {
    ASSERT_TRUE(pump({&server_}, [&] { return server_.find(Completion::Kind::peer_lost) != nullptr; }));
    EXPECT_NE(server_.lost_cause().find("Connection timed out"), std::string::npos) << server_.lost_cause();
  }
  Node server_;
  RawPeer raw_;
  Connection* connection_ = nullptr;
};

TEST_F(TcpVanished, NoticedWhileSending) {
  cut_the_cable();
  ASSERT_TRUE(connection_->send(bytes_of("is the peer there?")).ok());
  expect_loss();
}

TEST_F(TcpVanished, NoticedWhileIdle) {
  cut_the_cable();
  expect_loss();
}

TEST_F(TcpVanished, RunningPeerThatDoesNotReadIsKept) {
  const std::string text(4096, 'x');
  while (connection_->send(bytes_of(text)).ok()) {
  }
  pump(
      {&server_}, [&] { return server_.find(Completion::Kind::peer_lost) != nullptr; }, 4s);
  EXPECT_EQ(server_.find(Completion::Kind::peer_lost), nullptr) << server_.lost_cause();
  EXPECT_TRUE(pump({&server_}, [&] {
    raw_.hear();
    return connection_->send(bytes_of("reads again")).ok();
  }));
}

TEST_F(TcpHostile, ManySilentConnectionsDoNotBlockPeers) {
  std::vector<std::unique_ptr<RawPeer>> crowd;
  for (int i = 0; i < 40; ++i) {
    crowd.push_back(std::make_unique<RawPeer>(address_));
    server_.poll();
    if (i % 10 == 0) expect_honest_peer_served();
  }
  expect_honest_peer_served();
  EXPECT_TRUE(pump({&server_}, [&] {
    bool all = true;
    for (auto& raw : crowd) {
      raw->hear();
      all = all && raw->closed;
    }
    return all;
  }));
  size_t lines = 0;
  for (const char c : log_.text()) lines += c == '\n';
  EXPECT_EQ(lines, 1U) << "40 unknown connections within 10 s are one line:\n" << log_.text();
}

TEST_F(TcpHostile, ConnectionBeyondTheLimitGetsTheReason) {
  Tuning tuning;
  tuning.max_connections = 1;
  Node small(tuning);
  const std::string address = small.listen();
  Node first;
  first.connect(address);
  ASSERT_TRUE(pump({&small, &first}, [&] { return small.find(Completion::Kind::connected) != nullptr; }));
  Node second;
  second.connect(address);
  ASSERT_TRUE(pump({&small, &second}, [&] { return second.find(Completion::Kind::peer_lost) != nullptr; }));
  EXPECT_NE(second.lost_cause().find("too many connections"), std::string::npos) << second.lost_cause();
  EXPECT_EQ(first.find(Completion::Kind::peer_lost), nullptr);
}

TEST_F(TcpHostile, OutOfDescriptorsIsSurvivedWithoutSpinning) {
  expect_honest_peer_served();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  RawPeer waiting(address_);  // in the backlog
  waiting.start_handshake();
  const rlimit none = {.rlim_cur = 3, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  int wakes = 0;
  for (const TimePoint end = in(300ms); Clock::now() < end; ++wakes) {
    if (server_.context->arm()) {
      pollfd block = {.fd = server_.context->wait_fd(), .events = POLLIN, .revents = 0};
      ::poll(&block, 1, 100);
    }
    server_.poll();
  }
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_LT(wakes, 50);
  server_.seen.clear();
  EXPECT_TRUE(pump({&server_}, [&] { return server_.find(Completion::Kind::connected) != nullptr; }));
}

}  // namespace
}  // namespace gradrail::transport::tcp
