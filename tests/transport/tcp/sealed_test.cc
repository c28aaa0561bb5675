// Encrypted connections between two contexts, with an attacker on the wire.
#include <algorithm>
#include <functional>

#include "tests/transport/tcp/fixture.h"
#include "transport/tcp/seal/record_cipher.h"

namespace gradrail::transport::tcp {
namespace {

OpenOptions encrypted(const std::string& key = "of the job") { return {.encryption = Encryption{key}}; }

/// Forwards the bytes of one connection. A function may change them, and they are recorded.
class Wire {
 public:
  using Change = std::function<void(std::string& bytes, size_t at)>;  ///< `at`: position in the stream

  /// `address`: of the listener, with its key.
  explicit Wire(const std::string& address) : key_(address.substr(address.find('#'))), target_(address) {
    auto fd = listen_at(resolve({"127.0.0.1", 0}).value().at(0));
    EXPECT_TRUE(fd.ok()) << fd.status();
    listener_ = *std::move(fd);
  }
  std::string address() const { return local_address(listener_.get()).text() + key_; }

  void forward() {
    if (client_ == nullptr) {
      FileDescriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) return;
      client_ = std::make_unique<RawPeer>(std::move(fd));
      server_ = std::make_unique<RawPeer>(target_.substr(0, target_.find('#')));
    }
    pass(*client_, *server_, to_server, change_to_server);
    pass(*server_, *client_, to_client, change_to_client);
  }

  std::string to_server, to_client;
  Change change_to_server, change_to_client;

 private:
  static void pass(RawPeer& from, RawPeer& to, std::string& record, const Change& change) {
    from.hear();
    std::string bytes = std::exchange(from.heard, "");
    const size_t at = record.size();
    record += bytes;
    if (change && !bytes.empty()) change(bytes, at);
    to.say(bytes.data(), bytes.size());
    if (from.closed) shutdown(to.fd(), SHUT_WR);
  }

  const std::string key_, target_;
  FileDescriptor listener_;
  std::unique_ptr<RawPeer> client_, server_;
};

class TcpSealed : public ::testing::Test {
 protected:
  TcpSealed() : server_(tuning(), encrypted()), client_(tuning(), encrypted()), address_(server_.listen()) {
    wire_ = std::make_unique<Wire>(address_);
  }

  static Tuning tuning() {
    Tuning tuning;
    tuning.hello_timeout = 300ms;
    tuning.records_per_key = 5;  // so that each test passes several keys
    return tuning;
  }

  template <typename Done>
  bool pump_all(Done done) {
    return pump({&server_, &client_}, [&] {
      wire_->forward();
      return done();
    });
  }
  bool is_connected() { return server_.find(Completion::Kind::connected) != nullptr; }
  void connect() {
    to_server_ = client_.connect(wire_->address());
    ASSERT_TRUE(pump_all([&] { return is_connected(); }));
    to_client_ = server_.find(Completion::Kind::connected)->connection;
  }
  /// Puts `bytes` of `source_` into `target_`, and waits until they arrive or a side is lost.
  void put() {
    source_region_ = client_.add(source_);
    target_region_ = server_.add(target_);
    const auto remote = to_server_->import(target_region_->key());
    ASSERT_TRUE(remote.ok()) << remote.status();
    ASSERT_TRUE(to_server_->put({source_region_.get(), 0, source_.size()}, {*remote, 0}, {.immediate = 7}).ok());
    ASSERT_TRUE(pump_all([&] {
      return server_.find(Completion::Kind::put_arrived) != nullptr || lost(server_) != nullptr ||
             lost(client_) != nullptr;
    }));
  }
  static const Completion* lost(const Node& node) { return node.find(Completion::Kind::peer_lost); }

  std::vector<std::byte> source_ = pattern(300'000, 1);
  std::vector<std::byte> target_ = std::vector<std::byte>(source_.size());
  Node server_, client_;
  const std::string address_;
  std::unique_ptr<Wire> wire_;
  Connection* to_server_ = nullptr;
  Connection* to_client_ = nullptr;
  std::unique_ptr<MemoryRegion> source_region_, target_region_;
};

TEST_F(TcpSealed, data_arrives_and_the_wire_has_no_plain_byte_run) {
  connect();
  put();
  EXPECT_EQ(target_, source_);
  ASSERT_TRUE(to_client_->send(bytes_of("a message in the clear?")).ok());
  ASSERT_TRUE(pump_all([&] { return client_.count(Completion::Kind::message) == 1; }));
  EXPECT_NE(to_client_->describe().find("encrypted"), std::string::npos);
  const std::string plain(reinterpret_cast<const char*>(source_.data()), source_.size());
  for (size_t at = 0; at + 16 <= plain.size(); at += 4096)
    EXPECT_EQ(wire_->to_server.find(plain.substr(at, 16)), std::string::npos) << at;
  EXPECT_EQ(wire_->to_client.find("in the clear"), std::string::npos);
  EXPECT_GT(wire_->to_server.size(), plain.size());
}

TEST_F(TcpSealed, another_shared_key_opens_nothing) {
  Node outsider(tuning(), encrypted("another job"));
  outsider.connect(wire_->address());
  ASSERT_TRUE(pump({&server_, &outsider}, [&] {
    wire_->forward();
    return lost(outsider) != nullptr;
  }));
  EXPECT_FALSE(is_connected());
  EXPECT_FALSE(lost(outsider)->altered);  // a wrong key is an error of the configuration
}

TEST_F(TcpSealed, another_public_key_opens_nothing) {
  Node other(tuning(), encrypted());
  const std::string other_address = other.listen();
  client_.connect(address_.substr(0, address_.find('#')) + other_address.substr(other_address.find('#')));
  ASSERT_TRUE(pump({&server_, &client_}, [&] { return lost(client_) != nullptr; }));
  EXPECT_FALSE(is_connected());
}

TEST_F(TcpSealed, no_side_falls_back_to_plain_data) {
  Node plain;
  const auto to_encrypted = plain.context->connect(address_, in(kTimeout));
  EXPECT_EQ(to_encrypted.status().code(), absl::StatusCode::kFailedPrecondition) << to_encrypted.status();
  const auto to_plain = client_.context->connect(plain.listen(), in(kTimeout));
  EXPECT_EQ(to_plain.status().code(), absl::StatusCode::kFailedPrecondition) << to_plain.status();
  // The same on the wire, where the address has lost its key or got one.
  plain.connect(address_.substr(0, address_.find('#')));
  ASSERT_TRUE(pump({&server_, &plain}, [&] { return lost(plain) != nullptr; }));
  EXPECT_NE(plain.lost_cause().find("--encrypt-data"), std::string::npos) << plain.lost_cause();
  EXPECT_FALSE(is_connected());
}

TEST_F(TcpSealed, a_recorded_connection_cannot_be_replayed) {
  connect();
  put();
  const std::string recorded = wire_->to_server;
  server_.seen.clear();
  RawPeer attacker(address_.substr(0, address_.find('#')));
  attacker.say(recorded.data(), recorded.size());
  ASSERT_TRUE(pump({&server_, &client_}, [&] {
    attacker.hear();
    return attacker.closed;
  }));
  EXPECT_FALSE(is_connected());
  EXPECT_EQ(lost(server_), nullptr);  // the first connection goes on
}

TEST_F(TcpSealed, garbage_behind_the_seal_frame_closes_the_connection_only) {
  for (int i = 0; i < 20; ++i) {
    RawPeer raw(address_.substr(0, address_.find('#')));
    raw.say(FrameHeader{.type = FrameType::seal,
                        .region = 1 + static_cast<uint32_t>(i % 2),
                        .token = kHelloMagic,
                        .length = kSealBytes,
                        .value = kProtocolVersion});
    const auto key = pattern(kSealBytes, static_cast<uint32_t>(i));
    raw.say(key.data(), key.size());
    ASSERT_TRUE(pump({&server_}, [&] {
      raw.hear();
      return raw.heard.size() >= kHeaderBytes + kSealBytes;
    }));
    const auto garbage = pattern(5000, static_cast<uint32_t>(i));
    raw.say(garbage.data(), garbage.size());
    ASSERT_TRUE(pump({&server_}, [&] {
      raw.hear();
      return raw.closed;
    }));
  }
  EXPECT_EQ(server_.seen.size(), 0U);
}

TEST_F(TcpSealed, a_flood_of_seal_frames_takes_a_few_agreements_per_poll) {
  std::vector<std::unique_ptr<RawPeer>> flood;
  for (uint32_t i = 0; i < 40; ++i) {
    RawPeer& raw = *flood.emplace_back(std::make_unique<RawPeer>(address_.substr(0, address_.find('#'))));
    raw.say(FrameHeader{
        .type = FrameType::seal, .region = 1, .token = kHelloMagic, .length = kSealBytes, .value = kProtocolVersion});
    const auto key = pattern(kSealBytes, i);
    raw.say(key.data(), key.size());
  }
  const auto answered = [&] {
    return static_cast<size_t>(std::count_if(flood.begin(), flood.end(), [](const auto& raw) {
      raw->hear();
      return raw->heard.size() >= kHeaderBytes + kSealBytes;
    }));
  };
  const TimePoint deadline = in(kTimeout);
  for (size_t before = 0, now = 0; now < flood.size() && Clock::now() < deadline; before = now) {
    server_.poll();
    now = answered();
    ASSERT_LE(now - before, tuning().max_agreements_per_poll);
  }
  EXPECT_EQ(answered(), flood.size());
  connect();  // a peer has its turn, too
}

/// An owner that does not poll is a suspended process.
TEST(TcpSuspended, a_record_that_waits_for_its_rest_gets_the_whole_time_again) {
  Tuning tuning;
  tuning.socket.vanish_timeout = 400ms;  // an incomplete record has three times this
  Node server(tuning, encrypted()), client(tuning, encrypted());
  Wire wire(server.listen());
  Connection* const to_server = client.connect(wire.address());
  const auto pump_all = [&](Duration time, const auto& done) {
    return pump(
        {&server, &client},
        [&] {
          wire.forward();
          return done();
        },
        time);
  };
  ASSERT_TRUE(pump_all(kTimeout, [&] { return server.find(Completion::Kind::connected) != nullptr; }));
  const size_t start = wire.to_server.size();
  wire.change_to_server = [&](std::string& bytes, size_t at) { bytes.resize(at == start ? 10 : 0); };
  ASSERT_TRUE(to_server->send(bytes_of("a message that arrives in part")).ok());
  ASSERT_TRUE(pump_all(kTimeout, [&] { return wire.to_server.size() > start; }));
  const auto is_lost = [&] { return server.find(Completion::Kind::peer_lost) != nullptr; };
  EXPECT_FALSE(pump_all(300ms, is_lost));
  std::this_thread::sleep_for(2s);
  EXPECT_FALSE(pump_all(200ms, is_lost)) << server.lost_cause();
  ASSERT_TRUE(pump_all(kTimeout, is_lost));
  EXPECT_NE(server.lost_cause().find("incomplete for too long"), std::string::npos) << server.lost_cause();
}

/// One byte of an open connection is altered: no put arrives, and both sides report the cause.
class TcpSealedAltered : public TcpSealed, public ::testing::WithParamInterface<size_t> {};

TEST_P(TcpSealedAltered, byte_ends_the_connection_on_both_sides) {
  connect();
  const size_t position = wire_->to_server.size() + GetParam();
  wire_->change_to_server = [&](std::string& bytes, size_t at) {
    if (position >= at && position < at + bytes.size()) bytes[position - at] ^= 1;
  };
  put();
  ASSERT_TRUE(pump_all([&] { return lost(server_) != nullptr && lost(client_) != nullptr; }));
  EXPECT_EQ(server_.count(Completion::Kind::put_arrived), 0U);
  EXPECT_TRUE(lost(server_)->altered);
  EXPECT_TRUE(lost(client_)->altered);
  EXPECT_NE(server_.lost_cause().find("was altered"), std::string::npos) << server_.lost_cause();
  EXPECT_NE(client_.lost_cause().find("was altered"), std::string::npos) << client_.lost_cause();
}

// The length, the check, the first and a later encrypted byte of a record, its tag, and parts of the third record.
INSTANTIATE_TEST_SUITE_P(Bytes, TcpSealedAltered,
                         ::testing::Values(0, 1, 2, 3, 4, 7, 8, 5000, 8 + seal::kMaxRecordBytes,
                                           2 * (seal::kMaxRecordBytes + seal::kRecordOverheadBytes) + 1,
                                           2 * (seal::kMaxRecordBytes + seal::kRecordOverheadBytes) + 9000));

TEST_F(TcpSealed, a_connection_cut_within_a_record_is_lost_but_not_altered) {
  connect();
  const size_t start = wire_->to_server.size();
  wire_->change_to_server = [&](std::string& bytes, size_t at) {
    if (at + bytes.size() > start + 40'000) bytes.resize(at > start + 40'000 ? 0 : start + 40'000 - at);
  };
  source_region_ = client_.add(source_);
  target_region_ = server_.add(target_);
  ASSERT_TRUE(to_server_
                  ->put({source_region_.get(), 0, source_.size()}, {*to_server_->import(target_region_->key()), 0},
                        {.immediate = 7})
                  .ok());
  ASSERT_TRUE(pump_all([&] { return wire_->to_server.size() > start + 100'000; }));
  client_.context->close(to_server_);
  ASSERT_TRUE(pump_all([&] { return lost(server_) != nullptr; }));
  EXPECT_FALSE(lost(server_)->altered);
  EXPECT_EQ(server_.count(Completion::Kind::put_arrived), 0U);
}

}  // namespace
}  // namespace gradrail::transport::tcp
