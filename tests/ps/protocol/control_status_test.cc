#include "ps/protocol/control_status.h"

#include "gmock/gmock.h"

namespace gradrail::ps {
namespace {

TEST(ConnectionCause, IsTheLastPartOfTheMessageOfGrpc) {
  EXPECT_EQ(connection_cause("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:2222: Failed to "
                             "connect to remote host: Connection refused"),
            "Connection refused");
  EXPECT_EQ(connection_cause("UNAVAILABLE: ipv4:10.0.0.1:2222: Socket closed"),
            "the process there closed the connection or ended");
  EXPECT_EQ(connection_cause("DNS resolution failed for n1:2222: C-ares status is not ARES_SUCCESS qtype=A name=n1 "
                             "is_balancer=0: Domain name not found"),
            "Domain name not found");
  EXPECT_EQ(connection_cause("failed to connect to all addresses"), "failed to connect to all addresses");
}

TEST(ConnectionCause, HasNoWordsOfGrpcOrTheOperatingSystemForALoss) {
  constexpr const char* kSilent = "the host there did not answer in time";
  constexpr const char* kReset = "the connection was reset by the process or the network there";
  EXPECT_EQ(connection_cause("keepalive watchdog timeout"), kSilent);
  EXPECT_EQ(connection_cause("UNAVAILABLE: ipv4:10.0.0.1:2222: keepalive watchdog timeout"), kSilent);
  EXPECT_EQ(connection_cause("recvmsg:Connection timed out"), kSilent);
  EXPECT_EQ(connection_cause("recvmsg:Connection reset by peer"), kReset);
  EXPECT_EQ(connection_cause("Connection reset by peer"), kReset);
  EXPECT_EQ(connection_cause("Cancelling all calls"), "the process there ended");
  EXPECT_EQ(connection_cause("sendmsg: Broken pipe"), "the process there closed the connection or ended");
  EXPECT_EQ(connection_cause("Deadline Exceeded"), "no answer in time");
}

TEST(ConnectionCause, KeepsTheWordsOfAServer) {
  for (const char* text : {"", "schema mismatch: 'w' [1] here, [2] there", "worker 1 (n1:2222): not a member"})
    EXPECT_EQ(connection_cause(text), text);
}

TEST(ConnectionCause, ASecondUseOfAProofIsALoss) {
  EXPECT_EQ(connection_cause("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:2222: HTTP proxy "
                             "returned response code 403"),
            "the connection was lost");
}

TEST(FromGrpc, OnlyALostConnectionHasACause) {
  const std::string text = "address 'unix:x': not an address";
  EXPECT_EQ(from_grpc(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, text)), absl::InvalidArgumentError(text));
  EXPECT_EQ(from_grpc(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, text)), absl::FailedPreconditionError(text));
  EXPECT_EQ(from_grpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, "ipv4:10.0.0.1:2222: Socket closed")),
            absl::UnavailableError("the process there closed the connection or ended"));
}

TEST(FromGrpc, AServerWithoutAThreadHasARemedy) {
  const absl::Status status = from_grpc(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, kNoThread));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("pids.max"));
}

}  // namespace
}  // namespace gradrail::ps
