#include "launch/rendezvous/rank_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

#include "base/file_descriptor.h"
#include "base/net_address.h"
#include "fmt/format.h"
#include "launch/rendezvous/rank_join.h"
#include "launch/rendezvous/rendezvous.grpc.pb.h"
#include "ps/admission/channel.h"
#include "ps/protocol/control_status.h"

namespace gradrail::launch {
namespace {

using proto::RankHello;
using proto::RankMessage;
using ::testing::HasSubstr;
using Server = absl::StatusOr<std::unique_ptr<RankServer>>;

constexpr int kMaxBytes = 64 << 10;

std::string text(const absl::Status& status) { return std::string(status.message()); }

RankMessage json(const std::string& content) {
  RankMessage message;
  message.set_json(content);
  return message;
}

/// A job of two ranks: the first one and a worker.
class RankServerTest : public ::testing::Test {
 protected:
  static RankHello hello(uint32_t rank) {
    RankHello hello = hello_of("job", 2, 1);
    hello.set_rank(rank);
    return hello;
  }
  TimePoint deadline() const { return Clock::now() + timeout_; }
  std::future<Server> gather_async() const {
    return std::async(
        std::launch::async,
        [options = RankServerOptions{
             .address = address_, .hello = hello(0), .timeout = timeout_, .max_message_bytes = max_bytes_}] {
          return RankServer::gather(options);
        });
  }
  absl::StatusOr<RankStreamPtr> join(const RankHello& hello) const {
    return join_first_rank(address_, "", hello, deadline(), max_bytes_, [](const std::string&) {});
  }
  /// The end of a stream that was refused.
  static absl::Status refusal(const absl::StatusOr<RankStreamPtr>& stream) {
    return stream.ok() ? (*stream)->receive(RankMessage::kJson, Clock::now() + std::chrono::seconds(20)).status()
                       : stream.status();
  }
  /// A stream of a client that is no gradrail: its status after one message.
  grpc::Status send_alone(const RankMessage& message) const {
    absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = absl::UnavailableError("not tried");
    while (!channel.ok() && Clock::now() < deadline())
      channel = ps::open_channel(address_, grpc::InsecureChannelCredentials(), "", {}, std::chrono::seconds(1));
    if (!channel.ok()) return ps::to_grpc(channel.status());
    proto::Rendezvous::Stub stub(*channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto stream = stub.Join(&context);
    stream->Write(message);
    RankMessage answer;
    EXPECT_FALSE(stream->Read(&answer));
    return stream->Finish();
  }
  /// Joins both ranks.
  void meet() {
    std::future<Server> gathered = gather_async();
    absl::StatusOr<RankStreamPtr> joined = join(hello(1));
    Server server = gathered.get();
    ASSERT_TRUE(joined.ok() && server.ok()) << joined.status() << server.status();
    rank_ = *std::move(joined);
    server_ = *std::move(server);
  }
  RankStream& at_server() const { return *server_->joined().front().stream; }

  // Tests run side by side, below the ports of outgoing connections.
  const std::string address_ = fmt::format("127.0.0.1:{}", 12000 + getpid() % 19000);
  Duration timeout_ = std::chrono::seconds(30);
  int max_bytes_ = kMaxBytes;
  std::unique_ptr<RankServer> server_;
  RankStreamPtr rank_;
};

TEST_F(RankServerTest, MessagesOfBothEndsArriveInOrder) {
  max_bytes_ = 4 << 20;
  meet();
  const std::string large(2 << 20, 'x');
  for (const std::string& content : {std::string("first"), large, std::string("last")}) {
    std::future<absl::Status> sent =
        std::async(std::launch::async, [&] { return at_server().send(json(content), deadline()); });
    EXPECT_EQ(rank_->receive(RankMessage::kJson, deadline())->json(), content);
    EXPECT_TRUE(sent.get().ok());
    EXPECT_TRUE(rank_->send(json("answer"), deadline()).ok());
    EXPECT_EQ(at_server().receive(RankMessage::kJson, deadline())->json(), "answer");
  }
  EXPECT_EQ(server_->assignments().assignment_of({"worker", 0}).worker_hosts(0), "127.0.0.1");
  EXPECT_EQ(server_->assignments().assignment_of({"worker", 0}).ps_hosts(0), "127.0.0.1");
}

TEST_F(RankServerTest, TheLastMessageArrivesBeforeTheEnd) {
  meet();
  ASSERT_TRUE(at_server().send(json("last"), deadline()).ok());
  server_.reset();
  EXPECT_EQ(rank_->receive(RankMessage::kJson, deadline())->json(), "last");
  EXPECT_EQ(rank_->receive(RankMessage::kJson, deadline()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(RankServerTest, TheEndOfARankIsNoticedAtOnce) {
  meet();
  rank_.reset();
  const absl::Status lost = at_server().receive(RankMessage::kJson, deadline()).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(text(lost), HasSubstr("worker/0 has ended"));
  EXPECT_EQ(at_server().send(json(""), deadline()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(RankServerTest, ALateAnswerIsNotTakenForTheNextOne) {
  meet();
  const absl::Status late = rank_->receive(RankMessage::kJson, Clock::now() + std::chrono::milliseconds(20)).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(text(late), HasSubstr(fmt::format("the first task of job at {} does not answer", address_)));
  at_server().send(json("late"), deadline()).IgnoreError();
  EXPECT_EQ(rank_->receive(RankMessage::kJson, deadline()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(RankServerTest, AMessageOfAnotherKindIsAnError) {
  meet();
  ASSERT_TRUE(at_server().send(json("{}"), deadline()).ok());
  EXPECT_THAT(text(rank_->receive(RankMessage::kAssignment, deadline()).status()), HasSubstr("unexpected message"));
}

TEST_F(RankServerTest, ConnectionsOfOtherProgramsAreIgnored) {
  std::future<Server> gathered = gather_async();
  const NetAddress address = resolve("127.0.0.1", parse_host_port(address_)->port)->front();
  const auto connect_raw = [&] {
    FileDescriptor fd;
    do fd.reset(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    while (connect(fd.get(), address.get(), address.bytes) != 0 && Clock::now() < deadline());
    return fd;
  };
  const FileDescriptor silent = connect_raw(), http = connect_raw(), noise = connect_raw();
  ASSERT_TRUE(write_all(http.get(), "GET / HTTP/1.0\r\n\r\n"));
  ASSERT_TRUE(write_all(noise.get(), std::string(4096, '\xff')));
  const absl::StatusOr<RankStreamPtr> joined = join(hello(1));  // ended too early, it would reset the stream
  EXPECT_TRUE(joined.ok());
  EXPECT_TRUE(gathered.get().ok());
}

TEST_F(RankServerTest, AStreamNeedsAHelloOfModestSize) {
  std::future<Server> gathered = gather_async();
  RankMessage port, large;
  port.set_port(1);
  large.mutable_hello()->set_job(std::string(2 * kMaxBytes, 'x'));
  const grpc::Status without = send_alone(port);
  EXPECT_EQ(without.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(without.error_message(), HasSubstr("must be a hello"));
  EXPECT_EQ(send_alone(large).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const absl::StatusOr<RankStreamPtr> joined = join(hello(1));  // ended too early, it would reset the stream
  EXPECT_TRUE(joined.ok());
  EXPECT_TRUE(gathered.get().ok());
}

TEST_F(RankServerTest, ARankOfAnotherJobIsRefused) {
  std::future<Server> gathered = gather_async();
  RankHello other = hello(1);
  other.set_job(std::string(20'000, 'x'));  // gRPC does not send such a long reason
  EXPECT_THAT(text(refusal(join(other))),
              HasSubstr("refused this task: this rendezvous belongs to job, the task to xxx"));
  const absl::StatusOr<RankStreamPtr> joined = join(hello(1));  // ended too early, it would reset the stream
  EXPECT_TRUE(joined.ok());
  EXPECT_TRUE(gathered.get().ok());
}

TEST_F(RankServerTest, ARankThatDoesNotFitEndsTheWait) {
  RankHello version = hello(1), size = hello(1), ps = hello(1);
  version.set_version("0.0 of a test");
  size.set_size(7);
  ps.set_ps_count(4);
  for (const auto& [odd, words] :
       {std::pair{version, "it is 0.0 of a test, the first one"},
        std::pair{size, "it has 7 tasks, the first one has 2"}, std::pair{ps, "--ps 4 there, --ps 1 here"}}) {
    std::future<Server> gathered = gather_async();
    const absl::Status refused = refusal(join(odd));
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(text(refused), HasSubstr(words));
    const absl::Status ended = gathered.get().status();
    EXPECT_EQ(ended.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(text(ended), HasSubstr(fmt::format("rank 1: {}", words)));
  }
}

TEST_F(RankServerTest, ARankCannotJoinTwice) {
  std::future<Server> gathered = gather_async();
  EXPECT_THAT(text(refusal(join(hello(0)))), HasSubstr("there is another rank 0"));
  const absl::StatusOr<RankStreamPtr> joined = join(hello(1));
  const Server server = gathered.get();
  ASSERT_TRUE(joined.ok() && server.ok());
  EXPECT_THAT(text(refusal(join(hello(1)))), HasSubstr("all ranks of that job have joined"));
}

TEST_F(RankServerTest, TheDeadlineNamesTheMissingTasks) {
  timeout_ = std::chrono::milliseconds(200);
  const absl::Status missing = gather_async().get().status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(text(missing), HasSubstr(fmt::format("worker/0 of job at {} did not join", address_)));
  const absl::Status alone = join(hello(1)).status();
  EXPECT_EQ(alone.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(text(alone), HasSubstr(fmt::format("no process listens at {}", address_)));
  EXPECT_THAT(text(alone), HasSubstr("Connection refused"));
}

TEST_F(RankServerTest, AnUnknownHostIsNamed) {
  const absl::Status unknown =
      join_first_rank("no-host.invalid:1", "", hello(1), Clock::now() + std::chrono::milliseconds(300), kMaxBytes,
                      [](const auto&) {})
          .status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(text(unknown), HasSubstr("no-host.invalid"));
}

TEST_F(RankServerTest, ATakenPortIsNamed) {
  meet();
  const absl::Status taken = gather_async().get().status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(text(taken), HasSubstr(fmt::format("cannot listen on {}: the port is in use", address_)));
  EXPECT_THAT(text(taken), HasSubstr("--rendezvous tcp://HOST:PORT"));
}

TEST(HostOfPeer, UnderstandsTheNotationOfGrpc) {
  EXPECT_EQ(host_of_peer("ipv4:10.0.0.1:2222"), "10.0.0.1");
  EXPECT_EQ(host_of_peer("ipv6:%5Bfd00::1%5D:2222"), "fd00::1");
  EXPECT_EQ(host_of_peer("ipv6:%5Bfe80::1%25eth0%5D:2222"), "fe80::1%eth0");
  EXPECT_EQ(host_of_peer("ipv6:%5B::ffff:10.0.0.1%5D:2222"), "10.0.0.1");
  for (const char* none : {"", "unix:/tmp/socket", "unknown", "ipv4:"}) EXPECT_EQ(host_of_peer(none), "") << none;
}

}  // namespace
}  // namespace gradrail::launch
