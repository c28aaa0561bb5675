#include "worker/publish/publisher_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/net_address.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/protocol/mac.h"

namespace gradrail::publish {

absl::StatusOr<std::unique_ptr<PublisherLink>> PublisherLink::open(const std::string& address, std::string secret,
                                                                   Duration quiet_limit) {
  GRADRAIL_ASSIGN_OR_RETURN(const HostPort place, parse_host_port(address));
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<NetAddress> found, resolve(place.host, place.port));
  const NetAddress& to = found.front();
  FileDescriptor socket(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!socket) return absl::ResourceExhaustedError(fmt::format("no socket for {}: {}", address, std::strerror(errno)));
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const bool started = connect(socket.get(), to.get(), to.bytes) == 0 || errno == EINPROGRESS;
  if (!started) return absl::UnavailableError(fmt::format("{} cannot be reached: {}", address, std::strerror(errno)));
  return std::unique_ptr<PublisherLink>(new PublisherLink(std::move(socket), address, std::move(secret), quiet_limit));
}

PublisherLink::PublisherLink(FileDescriptor socket, std::string address, std::string secret, Duration quiet_limit)
    : socket_(std::move(socket)), address_(std::move(address)), secret_(std::move(secret)), quiet_limit_(quiet_limit) {}

absl::Status PublisherLink::lost(const std::string& why) const {
  return absl::UnavailableError(fmt::format("the publisher at {} was lost: {}", address_, why));
}

absl::Status PublisherLink::finish_connect(TimePoint deadline) {
  int error = wait_ready(socket_.get(), POLLOUT, std::min(deadline, heard_ + quiet_limit_));
  if (error == ETIMEDOUT && Clock::now() < heard_ + quiet_limit_)
    return absl::DeadlineExceededError("it does not answer");
  socklen_t bytes = sizeof(error);
  if (error == 0) getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  // The kernel may choose the port of the absent publisher as the local port.
  if (error == 0 && local_address(socket_.get()).text() == peer_address(socket_.get()).text()) error = ECONNREFUSED;
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("{} cannot be reached: {}; is the publisher running?", address_, std::strerror(error)));
}

absl::Status PublisherLink::greet(TimePoint deadline) {
  if (state_ == State::connecting) {
    GRADRAIL_RETURN_IF_ERROR(finish_connect(deadline));
    state_ = State::challenge;
  }
  if (state_ == State::challenge) {
    GRADRAIL_RETURN_IF_ERROR(fill(kChallengeBytes, deadline));
    const std::string challenge = std::exchange(input_, {});
    if (!challenge.starts_with(kMagic))
      return absl::DataLossError(fmt::format("{} is not a publisher of weights", address_));
    const std::string nonce = random_bytes(kNonceBytes);
    key_ = session_key(secret_, std::string_view(challenge).substr(kMagic.size()), nonce);
    GRADRAIL_RETURN_IF_ERROR(send_all(std::string(kMagic) + nonce + proof_of(key_, "reader")));
    state_ = State::welcome;
  }
  if (state_ == State::welcome) {
    GRADRAIL_ASSIGN_OR_RETURN(const std::string payload, read_frame(FrameType::welcome, deadline));
    GRADRAIL_ASSIGN_OR_RETURN(welcome_, decode_welcome(payload));
    if (!ps::same_bytes(welcome_.proof, proof_of(key_, "publisher")))
      return absl::FailedPreconditionError(fmt::format("{} does not have the secret of this reader", address_));
    state_ = State::ready;
  }
  return absl::OkStatus();
}

absl::Status PublisherLink::send_all(const std::string& text) {
  // The messages of a reader are short, and the socket buffer is empty: the kernel takes them whole.
  const ssize_t sent = send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(text.size())) return absl::OkStatus();
  return lost(sent < 0 ? std::strerror(errno) : "the socket takes no bytes");
}

absl::StatusOr<size_t> PublisherLink::read_some(std::byte* to, size_t bytes, TimePoint deadline) {
  while (true) {
    const ssize_t got = recv(socket_.get(), to, bytes, 0);
    if (got > 0) {
      heard_ = Clock::now();
      return static_cast<size_t>(got);
    }
    if (got == 0) return lost("it closed the connection");
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return lost(std::strerror(errno));
    const int error = wait_ready(socket_.get(), POLLIN, std::min(deadline, heard_ + quiet_limit_));
    if (error == 0) continue;
    if (error != ETIMEDOUT) return lost(std::strerror(error));
    if (Clock::now() >= heard_ + quiet_limit_) return lost("it sent nothing for too long");
    return absl::DeadlineExceededError("no new version has arrived");
  }
}

absl::Status PublisherLink::fill(size_t bytes, TimePoint deadline) {
  // The body arrives in pieces: its length is a claim of the peer, and memory must not be allocated before the bytes
  // exist.
  constexpr size_t kPieceBytes = size_t{64} << 10;
  while (input_.size() < bytes) {
    const size_t had = input_.size();
    input_.resize(std::min(bytes, had + kPieceBytes));
    const absl::StatusOr<size_t> got =
        read_some(reinterpret_cast<std::byte*>(input_.data()) + had, input_.size() - had, deadline);
    input_.resize(had + (got.ok() ? *got : 0));
    if (!got.ok()) return got.status();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> PublisherLink::read_frame(FrameType expected, TimePoint deadline) {
  while (true) {
    GRADRAIL_RETURN_IF_ERROR(fill(kFrameBytes, deadline));
    GRADRAIL_ASSIGN_OR_RETURN(const Frame frame, decode_frame(std::string_view(input_).substr(0, kFrameBytes)));
    GRADRAIL_RETURN_IF_ERROR(fill(kFrameBytes + frame.bytes, deadline));
    std::string payload = std::exchange(input_, {}).substr(kFrameBytes);
    if (frame.type == expected) return payload;
    if (frame.type == FrameType::end) return decode_end(payload);
    if (frame.type != FrameType::idle)
      return absl::DataLossError(fmt::format("{} sent a message out of order", address_));
  }
}

absl::Status PublisherLink::request(const Request& request) {
  GRADRAIL_RETURN_IF_ERROR(send_all(encode(request)));
  heard_ = Clock::now();
  has_request_ = true;
  return absl::OkStatus();
}

absl::StatusOr<VersionHeader> PublisherLink::read_version(TimePoint deadline) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::string payload, read_frame(FrameType::version, deadline));
  GRADRAIL_ASSIGN_OR_RETURN(const VersionHeader header, decode_version(payload, key_, versions_));
  ++versions_;
  has_request_ = false;
  return header;
}

}  // namespace gradrail::publish
