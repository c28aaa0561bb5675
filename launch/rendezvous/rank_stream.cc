#include "launch/rendezvous/rank_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "base/little_endian.h"
#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::launch {
namespace {

constexpr size_t kLengthBytes = sizeof(uint32_t);
/// The largest message, of a benchmark, has sixteen thousand marks as text.
constexpr size_t kMaxMessageBytes = 64 << 20;
constexpr auto kRefuse = std::chrono::seconds(1);  // the buffer of a new connection is empty
constexpr size_t kMaxReasonBytes = 1000;

/// A host that vanishes sends no end. The kernel probes an idle connection, which costs no process any time.
void detect_vanished_host(int fd) {
  constexpr int kIdleS = 5, kProbeEveryS = 5, kVanishMs = 20'000;
  const auto set = [fd](int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleS);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeEveryS);
  // The option replaces a number of probes, and covers bytes under way too (tcp(7)).
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kVanishMs);
}

/// The length of the message at the begin of `bytes`, which has it.
size_t length_at(std::string_view bytes) { return load_le<uint32_t>(bytes.data()); }

}  // namespace

RankStream::RankStream(FileDescriptor socket, std::string peer_name)
    : socket_(std::move(socket)), peer_name_(std::move(peer_name)) {
  detect_vanished_host(socket_.get());
}

std::string RankStream::peer_host() const { return peer_address(socket_.get()).host(); }

void RankStream::set_joined(std::string peer_name) {
  peer_name_ = std::move(peer_name);
  max_bytes_ = kMaxMessageBytes;
}

absl::Status RankStream::lost() const {
  return absl::UnavailableError(fmt::format("{} has ended; its output has the cause", peer_name_));
}

/// A wait for the other rank.
absl::Status RankStream::wait(short events, TimePoint deadline) {
  const int error = wait_ready(socket_.get(), events, deadline);
  if (error == 0) return absl::OkStatus();
  if (error != ETIMEDOUT) return lost();
  return absl::DeadlineExceededError(
      fmt::format("{} does not answer (is its process stopped, or its network down?)", peer_name_));
}

absl::Status RankStream::write(const proto::RankMessage& message, TimePoint deadline) {
  std::string bytes;
  append_le(bytes, static_cast<uint32_t>(message.ByteSizeLong()));
  message.AppendToString(&bytes);
  for (std::string_view rest = bytes; !rest.empty();) {
    const ssize_t sent = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0)
      rest.remove_prefix(static_cast<size_t>(sent));
    else if (errno == EAGAIN)
      GRADRAIL_RETURN_IF_ERROR(wait(POLLOUT, deadline));
    else if (errno != EINTR)
      return lost();
  }
  return absl::OkStatus();
}

absl::Status RankStream::send(const proto::RankMessage& message, TimePoint deadline) {
  if (failed_.ok()) failed_ = write(message, deadline);
  return failed_;
}

void RankStream::refuse(const std::string& reason) {
  proto::RankMessage message;
  message.set_refusal(reason.substr(0, kMaxReasonBytes));
  write(message, Clock::now() + kRefuse).IgnoreError();
}

bool RankStream::has_message() const {
  return arrived_.size() >= kLengthBytes && arrived_.size() - kLengthBytes >= length_at(arrived_);
}

/// Reads what is there without a wait, up to the end of a message.
void RankStream::fill() {
  std::array<char, 64 << 10> bytes;
  while (failed_.ok() && !has_message()) {
    if (arrived_.size() >= kLengthBytes && length_at(arrived_) > max_bytes_) {
      failed_ = absl::UnavailableError(fmt::format("{} sent a message that is too large", peer_name_));
      return;
    }
    const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0)
      arrived_.append(bytes.data(), static_cast<size_t>(got));
    else if (got < 0 && errno == EAGAIN)
      return;
    else if (got == 0 || errno != EINTR)
      failed_ = lost();
  }
}

bool RankStream::is_ready() {
  fill();
  return !failed_.ok() || has_message();
}

absl::StatusOr<proto::RankMessage> RankStream::receive(proto::RankMessage::ContentCase kind, TimePoint deadline) {
  while (!is_ready()) failed_.Update(wait(POLLIN, deadline));
  if (!failed_.ok()) return failed_;
  const size_t bytes = length_at(arrived_);
  proto::RankMessage message;
  const bool is_message = message.ParseFromArray(arrived_.data() + kLengthBytes, static_cast<int>(bytes));
  arrived_.erase(0, kLengthBytes + bytes);
  if (is_message && message.content_case() == proto::RankMessage::kRefusal)
    failed_ = absl::FailedPreconditionError(fmt::format("{} refused this task: {}", peer_name_, message.refusal()));
  else if (!is_message || message.content_case() != kind)
    failed_ = absl::UnavailableError(fmt::format("{} sent an unexpected message", peer_name_));
  if (!failed_.ok()) return failed_;
  return message;
}

}  // namespace gradrail::launch
