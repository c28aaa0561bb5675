// open_channel() against servers that are no gates.
#include "ps/admission/channel.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <thread>

#include "base/file_descriptor.h"
#include "base/net_address.h"
#include "fmt/format.h"

namespace gradrail::ps {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// Accepts one connection, answers `text`, and closes it, or keeps it until the end of the test.
class OtherServer {
 public:
  OtherServer(const std::string& text, bool keeps) : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 1), 0);
    thread_ = std::thread([this, text, keeps] {
      FileDescriptor connection(accept(listener_.get(), nullptr, nullptr));
      char request[4096];
      if (recv(connection.get(), request, sizeof(request), 0) > 0) write_all(connection.get(), text);
      if (keeps) kept_ = std::move(connection);
    });
  }
  ~OtherServer() { thread_.join(); }
  std::string address() const { return local_address(listener_.get()).text(); }

 private:
  FileDescriptor listener_, kept_;
  std::thread thread_;
};

/// Tests that wait for no answer have a short timeout.
absl::Status open(const std::string& address, Duration timeout = 10s) {
  return open_channel(address, grpc::InsecureChannelCredentials(), "a secret of this job", {}, timeout).status();
}

TEST(Channel, AnotherServerIsNamed) {
  for (const bool keeps : {false, true}) {
    const OtherServer web("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", keeps);
    // An answer without an end counts as one after the timeout.
    const absl::Status status = keeps ? open(web.address(), 1s) : open(web.address());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << keeps;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not a task of this release of gradrail")) << keeps;
  }
}

TEST(Channel, AServerOfGrpcWithoutAGateIsNamed) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  grpc::AsyncGenericService service;
  builder.RegisterAsyncGenericService(&service);
  const auto queue = builder.AddCompletionQueue();
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::thread accepts([&queue] {
    void* tag = nullptr;
    bool good = false;
    while (queue->Next(&tag, &good)) {
    }
  });
  const absl::Status status = open(fmt::format("127.0.0.1:{}", port));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not a task of this release of gradrail"));
  server->Shutdown();
  queue->Shutdown();
  accepts.join();
}

TEST(Channel, AProcessThatClosesOrIsSilentMayBeStarting) {
  {
    const OtherServer closes("", false);
    const absl::Status status = open(closes.address());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("it ended, or is not a task of gradrail"));
  }
  const OtherServer silent("", true);
  EXPECT_EQ(open(silent.address(), 300ms).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(Channel, AnAbsentProcessIsNamed) {
  std::string address;
  {
    const FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&any), sizeof(any)), 0);
    address = local_address(listener.get()).text();
  }
  const absl::Status status = open(address);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Connection refused"));
  EXPECT_EQ(open("no-such-host.invalid:1").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(open("[::1:1").code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradrail::ps
