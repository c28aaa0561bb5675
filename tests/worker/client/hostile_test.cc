// Members and unauthenticated connections break the protocol at a running server: honest workers must not notice.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/status.h"
#include "fmt/format.h"
#include "tests/worker/client/cluster.h"
#include "tests/worker/client/raw_worker.h"
#include "transport/tcp/frame.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;

const Schema kModel = {{"w", {100}}};  // 400 bytes: seven buckets of 64 at one shard

class ClientHostile : public ::testing::TestWithParam<const char*> {
 protected:
  ClientHostile() : cluster_({.worker_count = 2, .transports = {GetParam()}}) {}

  void SetUp() override {
    honest_ = join(options(0), kModel);
    ASSERT_NE(honest_, nullptr);
    fill_initial(*honest_);
    ASSERT_TRUE(honest_->start().ok());
    train_on();
    hostile_ = std::make_unique<RawWorker>(options(1), kModel);
    ASSERT_TRUE(hostile_->join().ok());
  }

  /// One step of the honest worker: what it holds afterwards is its own work and nothing else.
  void train_on() {
    fill_gradients(*honest_, 0, ++steps_);
    honest_->exchange();
    const absl::Status waited = honest_->wait();
    ASSERT_TRUE(waited.ok()) << waited;
    ASSERT_EQ(honest_->global_step(), steps_);
    const std::vector<float> got = flatten(*honest_);
    for (size_t i = 0; i < got.size(); ++i) {
      float expected = initial_of(i);
      for (uint64_t step = 1; step <= steps_; ++step) expected -= gradient_of(0, step, i);
      ASSERT_EQ(got[i], expected) << i;
    }
  }

  ClientOptions options(uint32_t task_index) const {
    ClientOptions options = cluster_.options(task_index);
    options.bucket_bytes = 64;
    return options;
  }

  void complete_handshake() {
    const absl::StatusOr<std::string> refused = hostile_->start_handshake({.transport = GetParam()});
    ASSERT_TRUE(refused.ok()) << refused.status();
    ASSERT_EQ(*refused, "");
  }

  void expect_refused(const RawWorker::Handshake& handshake, const std::string& words) {
    const absl::StatusOr<std::string> refused = hostile_->start_handshake(handshake);
    ASSERT_TRUE(refused.ok()) << refused.status();
    EXPECT_THAT(*refused, HasSubstr(words));
    train_on();
  }

  void expect_header_refused(const ps::SlotHeader& header, uint64_t immediate, const std::string& words) {
    complete_handshake();
    hostile_->push(header, immediate);
    EXPECT_THAT(hostile_->refusal_reason(), HasSubstr(words));
    train_on();
    // A refused worker is not a member any more, although its heartbeats continue.
    EXPECT_TRUE(honest_->barriers().wait("without the hostile").ok());
  }

  const Watchdog watchdog_;
  Cluster cluster_;
  std::unique_ptr<Client> honest_;
  std::unique_ptr<RawWorker> hostile_;
  uint64_t steps_ = 0;
};

TEST_P(ClientHostile, WrongProof) {
  expect_refused({.transport = GetParam(), .proof = std::string(32, 'x')}, "not a member of this run");
}

/// Replays a recorded proof: each connection has another challenge.
TEST_P(ClientHostile, RecordedProof) {
  complete_handshake();
  const RawWorker::Link kept = hostile_->take_link();
  expect_refused({.transport = GetParam(), .proof = hostile_->last_proof()}, "not a member of this run");
}

TEST_P(ClientHostile, ProofOfAnotherMember) {
  expect_refused({.transport = GetParam(), .task_index = 0}, "not a member of this run");
}

TEST_P(ClientHostile, ProofAfterDisconnect) {
  hostile_->vanish();
  EXPECT_TRUE(honest_->barriers().wait("it is gone").ok());
  expect_refused({.transport = GetParam()}, "not a member of this run");
}

TEST_P(ClientHostile, GarbageForAHello) {
  for (const std::string& message : {std::string("\xff\xff\xff\xff"), std::string(), std::string(4000, 'A')}) {
    RawWorker another(options(7), kModel);
    ASSERT_TRUE(another.join().ok());
    const absl::StatusOr<std::string> refused = another.handshake_with(GetParam(), message);
    ASSERT_TRUE(refused.ok()) << refused.status();
    EXPECT_NE(*refused, "");
    train_on();
  }
}

TEST_P(ClientHostile, WrongMagic) {
  ps::SlotHeader header = hostile_->header(0, 64);
  header.magic = 7;
  expect_header_refused(header, 0, "wrong magic");
}

TEST_P(ClientHostile, BucketOutOfRange) { expect_header_refused(hostile_->header(0, 64), 7, "no bucket 7"); }

TEST_P(ClientHostile, ImmediateOutOfAllRange) {
  expect_header_refused(hostile_->header(0, 64), UINT64_MAX, "no bucket 18446744073709551615");
}

TEST_P(ClientHostile, HeaderOfAnotherBucket) {
  ps::SlotHeader header = hostile_->header(1, 64);
  expect_header_refused(header, 0, "is for another bucket");
}

TEST_P(ClientHostile, PayloadLength) {
  expect_header_refused(hostile_->header(6, 64), 6, "payload length is not the bucket's");
}

TEST_P(ClientHostile, IncarnationOfAnotherWorker) {
  ps::SlotHeader header = hostile_->header(0, 64);
  header.incarnation += 2;
  expect_header_refused(header, 0, "of another incarnation");
}

TEST_P(ClientHostile, FormatOfAnotherRun) {
  ps::SlotHeader header = hostile_->header(0, 32);
  header.format = PushFormat::bf16;
  expect_header_refused(header, 0, "the format is not the one of the run");
}

TEST_P(ClientHostile, LearningRate) {
  ps::SlotHeader header = hostile_->header(0, 64);
  header.rate = std::numeric_limits<float>::quiet_NaN();
  expect_header_refused(header, 0, "the learning rate is not a finite number");
}

TEST_P(ClientHostile, UnknownKind) {
  ps::SlotHeader header = hostile_->header(0, 64);
  header.kind = static_cast<ps::ArrivalKind>(9);
  expect_header_refused(header, 0, "unknown kind");
}

TEST_P(ClientHostile, UnknownKindWithAnotherLength) {
  ps::SlotHeader header = hostile_->header(6, 64);
  header.kind = static_cast<ps::ArrivalKind>(9);
  expect_header_refused(header, 6, "unknown kind");  // the kind decides which length is expected
}

TEST_P(ClientHostile, PayloadThatDoesNotMatchItsChecksum) {
  ps::SlotHeader header = hostile_->header(0, 64);
  header.has_crc = 1;
  header.crc32c = 12345;
  expect_header_refused(header, 0, "does not match its CRC32C");
}

TEST_P(ClientHostile, StepFromTheFuture) {
  ps::SlotHeader header = hostile_->header(0, 64);
  header.step = 99;
  expect_header_refused(header, 0, "step 99");
}

/// Nothing of a connection counts before bytes were seen to travel over it both ways.
TEST_P(ClientHostile, PushBeforeThePathWasChecked) {
  ASSERT_EQ(hostile_->start_handshake({.transport = GetParam()}, RawWorker::Until::welcome).value(), "");
  hostile_->push(hostile_->header(0, 64), 0);
  EXPECT_THAT(hostile_->refusal_reason(), HasSubstr("a push before the path was checked"));
  train_on();
}

TEST_P(ClientHostile, CheckedTransferThatArrivesDamaged) {
  ASSERT_EQ(hostile_->start_handshake({.transport = GetParam()}, RawWorker::Until::welcome).value(), "");
  hostile_->put_check(RawWorker::kCheckSeed + 1);
  EXPECT_THAT(hostile_->refusal_reason(), HasSubstr("arrived damaged: byte 0"));
  train_on();
}

TEST_P(ClientHostile, ReadyOutOfTurn) {
  ASSERT_EQ(hostile_->start_handshake({.transport = GetParam()}, RawWorker::Until::welcome).value(), "");
  ps::proto::ToShard message;
  message.mutable_ready();
  hostile_->say(message);
  EXPECT_THAT(hostile_->refusal_reason(), HasSubstr("out of turn"));
  train_on();
}

TEST_P(ClientHostile, PushOnAPathThatOnlyStandsBy) {
  ASSERT_EQ(hostile_->start_handshake({.transport = GetParam()}, RawWorker::Until::checked).value(), "");
  hostile_->push(hostile_->header(0, 64), 0);
  train_on();  // it was not applied
}

/// A shard that stores into the worker's memory itself must check the announced size and access rights.
TEST_P(ClientHostile, MemorySmallerThanTheModel) {
  if (std::string(GetParam()) != "shm") return;  // elsewhere the owner of the memory checks
  const absl::StatusOr<std::string> refused =
      hostile_->start_handshake({.transport = GetParam(), .parameters_bytes = 64, .gradients_bytes = 64});
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_THAT(*refused, HasSubstr("outside its region"));
  train_on();
}

TEST_P(ClientHostile, GradientsSmallerThanTheModel) {
  if (std::string(GetParam()) != "shm") return;
  const absl::StatusOr<std::string> refused =
      hostile_->start_handshake({.transport = GetParam(), .gradients_bytes = 64});
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_THAT(*refused, HasSubstr("outside its region"));
  train_on();
}

TEST_P(ClientHostile, ParametersThatMayNotBeWritten) {
  if (std::string(GetParam()) != "shm") return;
  const absl::StatusOr<std::string> refused =
      hostile_->start_handshake({.transport = GetParam(), .parameters_writable = false});
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_THAT(*refused, HasSubstr("does not allow"));
  train_on();
}

TEST_P(ClientHostile, OneTokenConnectsAgainAndTheFirstConnectionEnds) {
  complete_handshake();
  // The same member over a second connection, as after a broken one; what the first one sends is in flight meanwhile.
  RawWorker::Link first = hostile_->take_link();
  const absl::StatusOr<std::string> again = hostile_->start_handshake({.transport = GetParam()});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, "");
  EXPECT_TRUE(eventually([&] { return first.is_lost(); }));
  train_on();
}

INSTANTIATE_TEST_SUITE_P(Over, ClientHostile, ::testing::Values("shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

/// A member that is refused cannot contribute: where it cannot be spared the others must hear of it instead of waiting.
TEST(ClientHostilePush, GradientsWithoutThePackedPart) {
  Cluster cluster({.worker_count = 1, .transports = {"shm"}});
  ClientOptions options = cluster.options(0);
  options.compression.push = PushFormat::bf16;
  RawWorker hostile(options, kModel);
  ASSERT_TRUE(hostile.join().ok());
  const absl::StatusOr<std::string> refused = hostile.start_handshake({.transport = "shm"});
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_THAT(*refused, HasSubstr("outside its region"));
}

TEST(ClientHostileSync, RefusedWorkerThatIsNeededAbortsTheRunByName) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 2, .transports = {"tcp"}, .min_workers = 2});
  ClientOptions options[2] = {cluster.options(0, ModeKind::sync), cluster.options(1, ModeKind::sync)};
  const std::unique_ptr<Client> honest = join(options[0], kModel);
  ASSERT_NE(honest, nullptr);
  ASSERT_TRUE(honest->start().ok());
  RawWorker hostile(options[1], kModel);
  ASSERT_TRUE(hostile.join().ok());
  ASSERT_TRUE(hostile.start_handshake({.transport = "tcp"}).ok());
  ps::SlotHeader header = hostile.header(0, 400);
  header.magic = 7;
  hostile.push(header, 0);
  honest->exchange();
  const absl::Status waited = honest->wait();
  EXPECT_TRUE(absl::IsAborted(waited)) << waited;
  EXPECT_THAT(std::string(message_of(waited)), HasSubstr("worker 1 (raw) was lost: it was refused: slot header"));
}

class ClientHostileTcp : public ::testing::Test {
 protected:
  void SetUp() override {
    RawWorker guide(cluster_.options(9), kModel);
    ASSERT_TRUE(guide.join().ok());
    const std::string address = guide.address("tcp");
    to_.sin_family = AF_INET;
    to_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to_.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    client_ = join(cluster_.options(0), kModel);
    ASSERT_NE(client_, nullptr);
    ASSERT_TRUE(client_->start().ok());
  }

  /// Thirty of them, some of which never end, and a step of the honest worker after each.
  void visit(const std::function<std::string(int)>& bytes) {
    std::vector<int> sockets;
    for (int i = 0; i < 30; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to_), sizeof(to_)), 0) << strerror(errno);
      const std::string said = bytes(i);
      send(fd, said.data(), said.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      sockets.push_back(fd);
      client_->exchange();
      ASSERT_TRUE(client_->wait().ok());
    }
    EXPECT_EQ(client_->global_step(), 30u);
    for (const int fd : sockets) close(fd);
  }

  const Watchdog watchdog_;
  Cluster cluster_{{.worker_count = 1, .transports = {"tcp"}}};
  sockaddr_in to_{};
  std::unique_ptr<Client> client_;
};

/// Bytes of no protocol.
TEST_F(ClientHostileTcp, NoiseAtThePortDisturbsNoWorker) {
  visit([](int i) { return i % 3 == 0 ? "" : i % 3 == 1 ? "GET / HTTP/1.1\r\n\r\n" : std::string(100'000, 'g'); });
}

/// A peer that is there and lost again by the same segment.
TEST_F(ClientHostileTcp, AHelloWithAnInvalidFrameBehindItDisturbsNoWorker) {
  using namespace transport::tcp;
  const HeaderBytes header = encode({.type = FrameType::hello, .token = kHelloMagic, .value = kProtocolVersion});
  const std::string hello(reinterpret_cast<const char*>(header.data()), header.size());
  visit([&](int i) { return hello + (i % 2 == 0 ? hello : std::string(hello.size(), 'g')); });
}

}  // namespace
}  // namespace gradrail::worker
