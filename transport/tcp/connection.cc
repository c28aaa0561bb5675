// Set-up and end of a connection; the hot path is in connection_datapath.cc.
#include "transport/tcp/connection.h"

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/tcp/native_error.h"

namespace gradrail::transport::tcp {
namespace {

/// Factor of the time limit of a record. A stopped peer may have sent a part of it, and gets longer than a host that
/// does not answer.
constexpr int kStallFactor = 4;

}  // namespace

TcpConnection::TcpConnection(TcpContext& context, FileDescriptor fd, Side side,
                             std::unique_ptr<seal::SealedStream> seal)
    : EventSource(Kind::connection),
      context_(context),
      side_(side),
      name_(fmt::format("tcp {} > {}{}", local_address(fd.get()).text(), peer_address(fd.get()).text(),
                        seal == nullptr ? "" : ", encrypted")),
      fd_(std::move(fd)),
      state_(side == Side::accepted ? State::pending : State::open),
      seal_(std::move(seal)) {
  // epoll is level-triggered here: bytes that arrived before this call are reported by the next epoll_wait().
  context_.watch(fd_.get(), this, false);
}

TcpConnection::~TcpConnection() {
  // A count that stays above 0 would keep the context from poll_directly() for the rest of its lifetime.
  if (blocked_) context_.count_blocked(-1);
}

std::string TcpConnection::describe() const {
  if (seal_ == nullptr || !seal_->agreed()) return name_;
  return fmt::format("{} with {}", name_, seal::cipher_name(seal_->cipher()));
}

void TcpConnection::start_handshake() {
  if (seal_ != nullptr && side_ == Side::connected) seal_->offer();
  // The connecting side does not wait for the answer: posts follow the hello on the stream, and the peer reads them in
  // order.
  post({.header = {.type = FrameType::hello, .token = kHelloMagic, .value = kProtocolVersion}}, true);
}

absl::Status TcpConnection::begin_hello(const FrameHeader& frame) {
  if (frame.token != kHelloMagic) return absl::DataLossError("hello of another protocol");
  if (frame.value != kProtocolVersion) {
    return absl::FailedPreconditionError(fmt::format(
        "protocol version {}, this side has version {}: run the same gradrail on both", frame.value, kProtocolVersion));
  }
  handshake_done_ = true;
  if (side_ == Side::accepted) {
    GRADRAIL_CHECK(state_ == State::pending);
    state_ = State::open;
    // Reports `connected` before any further frame of this read can report a completion.
    context_.on_handshake_done(this);
    start_handshake();
  }
  return absl::OkStatus();
}

void TcpConnection::finish_seal() {
  if (side_ == Side::accepted) context_.count_agreement();
  const absl::Status agreed = seal_->agree(frame_, {body_.get(), kSealBytes});
  if (!agreed.ok()) return refuse(agreed);
  // The connecting side waits for this frame, and the listening side for the first record.
  if (ahead_begin_ != ahead_end_) return refuse(absl::DataLossError("data behind the seal frame"));
  flush();
  if (sendable()) context_.flush_later(this);
}

absl::StatusOr<RemoteRegion> TcpConnection::import(std::string_view key) {
  GRADRAIL_ASSIGN_OR_RETURN(RegionKey parsed, RegionKey::parse(key));
  return imported_.add(parsed);
}

absl::StatusOr<std::byte*> TcpConnection::map(RemoteRegion) {
  return absl::UnimplementedError("tcp cannot map a peer's memory");
}

void TcpConnection::refuse(const absl::Status& why, bool altered) {
  GRADRAIL_CHECK(state_ != State::lost);  // the peer gets one refusal
  // The peer finds the refusal only at a frame boundary, so the frame that is partly sent is completed first. Zeros
  // replace the bytes of a region that is no longer registered.
  const bool zeros = queue_.begun_frame_is_answer() && !answers_alive();
  std::string final_bytes = queue_.rest_of_begun_frame(zeros);
  final_bytes += refusal_frame(message_of(why), altered);
  if (seal_ != nullptr) final_bytes = seal_->final_bytes(final_bytes);
  // close_pending() logs the refusals before a hello, at a limited rate.
  if (state_ == State::open)
    context_.rate_limited_log().write(fmt::format("{}: refused the peer: {}", name_, message_of(why)));
  hand_over(std::move(final_bytes));
  lose({why.code(), fmt::format("{}: refused the peer: {}", name_, message_of(why))}, altered);
}

void TcpConnection::hand_over(std::string final_bytes) {
  set_blocked(false);
  if (!fd_) return;
  // The entry in epoll points to this object; LingeringClose adds the descriptor again with its own pointer.
  context_.unwatch(fd_.get());
  context_.close_lingering(std::move(fd_), std::move(final_bytes));
}

void TcpConnection::close_silently() {
  if (state_ == State::lost) return;
  GRADRAIL_CHECK(state_ == State::open);  // a pending connection is unknown to the owner (invariant 2)
  // The call may still report put_done or a loss: TcpContext::close() removes these completions afterwards.
  flush();
  state_ = State::lost;
  // A plain close is wrong here: unread input would make it a reset, which overtakes bytes that are still in flight.
  // Otherwise the last record would be incomplete.
  hand_over(seal_ == nullptr ? "" : seal_->final_bytes(""));
}

void TcpConnection::lose(absl::Status cause, bool altered) {
  if (state_ == State::lost) return;
  GRADRAIL_CHECK(!cause.ok());
  const bool pending = state_ == State::pending;
  state_ = State::lost;
  set_blocked(false);
  if (fd_) context_.unwatch(fd_.get());
  fd_.reset();
  // These operations end without separate completions; peer_lost represents all of them.
  queue_.clear();
  gets_.clear();
  // The owner has not received a pending connection, so it gets no peer_lost for it (invariant 2).
  if (pending) {
    context_.close_pending(this, message_of(cause));
    return;
  }
  Completion lost;
  lost.kind = Completion::Kind::peer_lost;
  lost.connection = this;
  lost.cause = std::move(cause);
  lost.altered = altered;
  context_.report(std::move(lost));
}

void TcpConnection::check_alive(TimePoint now, Duration timeout, bool was_suspended) {
  if (state_ != State::open) return;
  // The bytes that follow may have been removed on the way; without them the tag of the record cannot be verified.
  if (seal_ != nullptr && seal_->stalled(now, was_suspended) > kStallFactor * timeout)
    return lose(ended("an encrypted record has been incomplete for too long"));
  if (!unanswered(fd_.get())) {
    unanswered_since_ = TimePoint::max();
    return;
  }
  // The time counts from the first look that found unanswered packets; each answer resets it above.
  unanswered_since_ = was_suspended ? now : std::min(unanswered_since_, now);
  if (now - unanswered_since_ < timeout) return;
  lose(ended(message_of(native_error("the host has not answered for too long", ETIMEDOUT))));
}

absl::Status TcpConnection::ended(std::string_view how) const {
  if (in_payload_)
    return absl::UnavailableError(fmt::format("{}: {} in the middle of a {}", name_, how, frame_name(frame_.type)));
  return absl::UnavailableError(fmt::format("{}: {}", name_, how));
}

}  // namespace gradrail::transport::tcp
