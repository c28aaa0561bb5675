// The gate with raw sockets.
#include "ps/admission/gate.h"
#include "ps/admission/gate_text.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "base/mutex.h"
#include "fmt/format.h"

namespace gradrail::ps {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kSecret = "a secret of this job";

class Peer {
 public:
  explicit Peer(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  /// False: the gate has closed the connection.
  bool say(std::string_view text) { return send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) > 0; }
  /// Reads up to `bytes`, or to the end of the connection.
  std::string hear(size_t bytes = 4096) {
    std::string text(bytes, '\0');
    size_t length = 0;
    while (length < bytes) {
      const ssize_t got = recv(socket_.get(), text.data() + length, bytes - length, 0);
      if (got < 0 && errno == EAGAIN) ADD_FAILURE() << "the gate keeps a connection";
      if (got <= 0) break;
      length += static_cast<size_t>(got);
    }
    return text.substr(0, length);
  }

 private:
  FileDescriptor socket_;
};

class Gate : public ::testing::Test {
 protected:
  void listen(AdmissionGate::Options options) {
    auto listening = AdmissionGate::listen("127.0.0.1:0", std::move(options));
    ASSERT_TRUE(listening.ok()) << listening.status();
    gate_ = *std::move(listening);
    const absl::Status started = gate_->start([this](FileDescriptor socket) {
      const MutexLock lock(mutex_);
      admitted_.push_back(std::move(socket));
      write_all(admitted_.back().get(), "served");
    });
    ASSERT_TRUE(started.ok()) << started;
  }
  std::string proof(const std::string& secret) {
    Peer peer(gate_->port());
    const std::string client_challenge = new_client_challenge();
    peer.say(fmt::format("GET {}{} HTTP/1.1\r\n\r\n", kChallengePath, absl::WebSafeBase64Escape(client_challenge)));
    const std::string heard = peer.hear();
    EXPECT_THAT(heard, StartsWith("HTTP/1.1 200 "));
    const std::vector<std::string> parts =
        absl::StrSplit(heard.substr(heard.find("\r\n\r\n") + 4), absl::ByAnyChar(" \n"));
    std::string challenge, answer;
    EXPECT_TRUE(absl::WebSafeBase64Unescape(parts.at(0), &challenge) &&
                absl::WebSafeBase64Unescape(parts.at(1), &answer));
    return absl::WebSafeBase64Escape(prove_connection(secret, client_challenge, challenge, answer).value());
  }
  static std::string connect_request(const std::string& proof) {
    return fmt::format("CONNECT x HTTP/1.1\r\nHost: x\r\nGradrail-Proof: {}\r\n\r\n", proof);
  }
  size_t admitted() {
    const MutexLock lock(mutex_);
    return admitted_.size();
  }

  Mutex mutex_;
  std::vector<FileDescriptor> admitted_;
  std::unique_ptr<AdmissionGate> gate_;  // last: its thread uses the others
};

TEST_F(Gate, AdmitsAProofOnce) {
  listen({.secret = kSecret});
  const std::string request = connect_request(proof(kSecret));
  Peer first(gate_->port());
  first.say(request);
  const std::string welcome = "HTTP/1.1 200 OK\r\n\r\nserved";
  EXPECT_EQ(first.hear(welcome.size()), welcome);
  Peer replay(gate_->port());
  replay.say(request);
  EXPECT_THAT(replay.hear(), HasSubstr("this proof was used before"));
  EXPECT_EQ(admitted(), 1u);
}

TEST_F(Gate, TheKernelLooksForAVanishedHost) {
  listen({.secret = kSecret, .vanish_timeout = 4s});
  Peer peer(gate_->port());
  peer.say(connect_request(proof(kSecret)));
  peer.hear(std::string_view("HTTP/1.1 200 OK\r\n\r\nserved").size());  // the server sends "served" after the admission
  const MutexLock lock(mutex_);
  const auto option = [&](int level, int name) {
    int value = -1;
    socklen_t bytes = sizeof(value);
    EXPECT_EQ(getsockopt(admitted_.at(0).get(), level, name, &value, &bytes), 0);
    return value;
  };
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 2);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPINTVL), 1);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 6000);
}

TEST_F(Gate, AdmitsARequestInPieces) {
  listen({.secret = kSecret});
  Peer peer(gate_->port());
  for (const char each : connect_request(proof(kSecret))) ASSERT_TRUE(peer.say({&each, 1}));
  EXPECT_THAT(peer.hear(12), StartsWith("HTTP/1.1 200"));
}

TEST_F(Gate, WithoutASecretTheProtocolIsEnough) {
  listen({});
  Peer peer(gate_->port());
  peer.say(connect_request(""));
  EXPECT_THAT(peer.hear(12), StartsWith("HTTP/1.1 200"));
}

TEST_F(Gate, RefusesOtherRequests) {
  listen({.secret = kSecret});
  for (const std::string& request : {connect_request(""), connect_request("!"), connect_request("AAAA"),
                                     std::string("CONNECT x HTTP/1.1\r\n\r\n")}) {
    Peer peer(gate_->port());
    peer.say(request);
    EXPECT_THAT(peer.hear(), StartsWith("HTTP/1.1 403")) << request;
  }
  for (const char* request :
       {"GET / HTTP/1.1\r\n\r\n", "GET /gradrail/challenge/! HTTP/1.1\r\n\r\n", "GET /\r\n\r\n"}) {
    Peer peer(gate_->port());
    peer.say(request);
    EXPECT_THAT(peer.hear(), StartsWith("HTTP/1.1 404")) << request;
  }
  // Other protocols and a request without an end are closed without an answer.
  for (const std::string& request : {std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), std::string("\x16\x03\x01", 3),
                                     "GET /" + std::string(4096, 'x'), connect_request(proof(kSecret)) + "more"}) {
    Peer peer(gate_->port());
    peer.say(request);
    EXPECT_EQ(peer.hear(), "") << request;
  }
  EXPECT_EQ(admitted(), 0u);
}

TEST_F(Gate, ClosesASilentConnection) {
  listen({.timeout = 100ms});
  Peer silent(gate_->port()), half(gate_->port());
  half.say("CONNECT x");
  const TimePoint start = Clock::now();
  EXPECT_EQ(silent.hear(), "");
  EXPECT_EQ(half.hear(), "");
  EXPECT_GE(Clock::now() - start, 50ms);
}

TEST_F(Gate, AFloodOfSilentConnectionsClosesNoOther) {
  listen({.secret = kSecret, .timeout = 600s, .max_pending = 8});
  std::vector<Peer> silent;
  for (int i = 0; i < 200; ++i) silent.emplace_back(gate_->port());
  Peer peer(gate_->port());
  peer.say(connect_request(proof(kSecret)));
  EXPECT_THAT(peer.hear(12), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(silent.front().hear(), "") << "the oldest connection is closed";
}

TEST(GateAddress, NamesWhyItCannotListen) {
  const auto first = AdmissionGate::listen("127.0.0.1:0", {});
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string taken = fmt::format("127.0.0.1:{}", (*first)->port());
  const std::pair<std::string, std::string> cases[] = {{taken, "the port is in use"},
                                                       {"192.0.2.1:0", "not one of this host"},
                                                       {"no-such-host.invalid:0", "is the host name right?"}};
  for (const auto& [address, cause] : cases) {
    const auto second = AdmissionGate::listen(address, {});
    ASSERT_FALSE(second.ok());
    EXPECT_THAT(std::string(second.status().message()), HasSubstr("cannot listen on " + address));
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(cause));
  }
}

TEST(GateAddress, AFamilyThatAnotherProcessHasIsAnError) {
  const auto over_ipv4 = AdmissionGate::listen("0.0.0.0:0", {});
  ASSERT_TRUE(over_ipv4.ok()) << over_ipv4.status();
  const auto both = AdmissionGate::listen(fmt::format("[::]:{}", (*over_ipv4)->port()), {});
  EXPECT_EQ(both.status().code(), absl::StatusCode::kAlreadyExists) << both.status();
}

TEST(GateAddress, EndsWithPendingConnections) {
  auto gate = AdmissionGate::listen("127.0.0.1:0", {.timeout = 600s});
  ASSERT_TRUE(gate.ok()) << gate.status();
  ASSERT_TRUE((*gate)->start([](FileDescriptor) {}).ok());
  Peer silent((*gate)->port()), half((*gate)->port());
  half.say("CONNECT x");
  gate->reset();
  EXPECT_EQ(silent.hear(), "");
  EXPECT_EQ(half.hear(), "");
}

TEST(GateAddress, ListensOnAllInterfaces) {
  auto gate = AdmissionGate::listen("[::]:0", {});
  ASSERT_TRUE(gate.ok()) << gate.status();
  ASSERT_TRUE((*gate)->start([](FileDescriptor) {}).ok());
  Peer over_ipv4((*gate)->port());
  over_ipv4.say("GET / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(over_ipv4.hear(), StartsWith("HTTP/1.1 404"));
}

}  // namespace
}  // namespace gradrail::ps
