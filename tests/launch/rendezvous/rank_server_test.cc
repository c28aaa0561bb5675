#include "launch/rendezvous/rank_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

#include "base/file_descriptor.h"
#include "base/net_address.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "launch/rendezvous/rank_join.h"
#include "ps/admission/channel.h"

namespace gradrail::launch {
namespace {

using proto::RankHello;
using proto::RankMessage;
using ::testing::HasSubstr;
using Server = absl::StatusOr<std::unique_ptr<RankServer>>;

std::string text(const absl::Status& status) { return std::string(status.message()); }

RankMessage json(const std::string& content) {
  RankMessage message;
  message.set_json(content);
  return message;
}

/// A job of two ranks: the first one and a worker.
class RankServerTest : public ::testing::Test {
 protected:
  static RankHello hello(uint32_t rank) { return hello_of("job", rank, 2, 1); }
  TimePoint deadline() const { return Clock::now() + timeout_; }
  std::future<Server> gather_async() const {
    return std::async(std::launch::async,
                      [options = RankServerOptions{.address = address_, .hello = hello(0), .timeout = timeout_}] {
                        return RankServer::gather(options);
                      });
  }
  absl::StatusOr<RankStreamPtr> join(const RankHello& hello) const {
    return join_first_rank(address_, "", hello, deadline(), [](const std::string&) {});
  }
  /// The end of a stream that was refused.
  static absl::Status refusal(const absl::StatusOr<RankStreamPtr>& stream) {
    return stream.ok() ? (*stream)->receive(RankMessage::kJson, Clock::now() + std::chrono::seconds(20)).status()
                       : stream.status();
  }
  /// The answer to one message that is no hello.
  absl::Status answer_to(const RankMessage& message) const {
    absl::StatusOr<FileDescriptor> socket = absl::UnavailableError("not tried");
    while (!socket.ok() && Clock::now() < deadline())
      socket = ps::open_connection(address_, "", std::chrono::seconds(1));
    if (!socket.ok()) return socket.status();
    RankStream stream(*std::move(socket), "the first task");
    stream.send(message, deadline()).IgnoreError();
    return stream.receive(RankMessage::kAssignment, deadline()).status();
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
  RankStream& at_server() const { return *server_->streams()[1]; }

  // Tests run side by side, below the ports of outgoing connections.
  const std::string address_ = fmt::format("127.0.0.1:{}", 12000 + getpid() % 19000);
  Duration timeout_ = std::chrono::seconds(30);
  std::unique_ptr<RankServer> server_;
  RankStreamPtr rank_;
};

TEST_F(RankServerTest, MessagesOfBothEndsArriveInOrder) {
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
  EXPECT_EQ(server_->assignments().assignment_of(1).worker_hosts(0), "127.0.0.1");
  EXPECT_EQ(server_->assignments().assignment_of(1).ps_hosts(0), "127.0.0.1");
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
  *large.mutable_hello() = hello(1);
  large.mutable_hello()->set_cpus(std::string(kMaxHelloBytes, 'x'));
  EXPECT_EQ(answer_to(port).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(answer_to(large).code(), absl::StatusCode::kUnavailable);
  const absl::StatusOr<RankStreamPtr> joined = join(hello(1));  // ended too early, it would reset the stream
  EXPECT_TRUE(joined.ok());
  EXPECT_TRUE(gathered.get().ok());
}

TEST_F(RankServerTest, ARankOfAnotherJobIsRefused) {
  std::future<Server> gathered = gather_async();
  RankHello other = hello(1);
  other.set_job(std::string(20'000, 'x'));
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

TEST_F(RankServerTest, ARankWithAnotherSecretEndsAtOnce) {
  std::future<Server> gathered = std::async(std::launch::async, [&] {
    return RankServer::gather({.address = address_, .secret = "secret", .hello = hello(0), .timeout = timeout_});
  });
  const auto join_with = [&](const std::string& secret) {
    return join_first_rank(address_, secret, hello(1), deadline(), [](const std::string&) {});
  };
  for (const char* wrong : {"", "another"}) {
    const absl::Status refused = join_with(wrong).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnauthenticated) << refused;
    EXPECT_THAT(text(refused), HasSubstr("--secret-file"));
  }
  const absl::StatusOr<RankStreamPtr> joined = join_with("secret");
  EXPECT_TRUE(joined.ok()) << joined.status();
  EXPECT_TRUE(gathered.get().ok());
}

TEST_F(RankServerTest, ARankCannotJoinTwice) {
  std::future<Server> gathered = gather_async();
  EXPECT_THAT(text(refusal(join(hello(0)))), HasSubstr("there is another rank 0"));
  const absl::StatusOr<RankStreamPtr> joined = join(hello(1));
  const Server server = gathered.get();
  ASSERT_TRUE(joined.ok() && server.ok());
  EXPECT_THAT(text(refusal(join(hello(1)))), HasSubstr("all ranks of that job have joined"));
}

TEST_F(RankServerTest, ARankThatEndsBeforeTheOthersHaveJoinedIsReplaced) {
  std::future<Server> gathered = std::async(
      std::launch::async,
      [options = RankServerOptions{.address = address_, .hello = hello_of("job", 0, 3, 1), .timeout = timeout_}] {
        return RankServer::gather(options);
      });
  absl::StatusOr<RankStreamPtr> ended = join(hello_of("job", 1, 3, 1));
  ASSERT_TRUE(ended.ok()) << ended.status();
  ended->reset();
  // The first rank may not have seen the end yet: it refuses the second one then.
  absl::StatusOr<RankStreamPtr> again = absl::UnavailableError("not tried");
  for (bool is_refused = true; is_refused && Clock::now() < deadline();) {
    again = join(hello_of("job", 1, 3, 1));
    ASSERT_TRUE(again.ok()) << again.status();
    is_refused = (*again)->receive(RankMessage::kJson, Clock::now() + std::chrono::milliseconds(300)).status().code() ==
                 absl::StatusCode::kFailedPrecondition;
  }
  absl::StatusOr<RankStreamPtr> last = join(hello_of("job", 2, 3, 1));
  ASSERT_TRUE(last.ok()) << last.status();
  const Server server = gathered.get();
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE((*server)->streams()[1]->send(json("here"), deadline()).ok());
}

TEST_F(RankServerTest, TheDeadlineNamesTheMissingTasks) {
  timeout_ = std::chrono::milliseconds(200);
  const absl::Status missing = gather_async().get().status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(text(missing), HasSubstr(fmt::format("worker/0 of job at {} did not join", address_)));
  const absl::Status alone = join(hello(1)).status();
  EXPECT_EQ(alone.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(text(alone), HasSubstr(fmt::format("at {} did not admit this task in time", address_)));
  EXPECT_THAT(text(alone), HasSubstr("Connection refused"));
}

TEST_F(RankServerTest, AnUnknownHostIsNamed) {
  const absl::Status unknown = join_first_rank("no-host.invalid:1", "", hello(1),
                                               Clock::now() + std::chrono::milliseconds(300), [](const auto&) {})
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

}  // namespace
}  // namespace gradrail::launch
