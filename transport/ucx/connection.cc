// Set-up and end of a connection; the posts are in connection_datapath.cc.
#include "transport/ucx/connection.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/common/byte_codec.h"
#include "transport/ucx/context.h"
#include "transport/ucx/native_error.h"

namespace gradrail::transport::ucx {
namespace {

/// Time limit of the end. UCX immediately cancels what it can; a device that does not answer even that is abandoned.
constexpr Duration kEndTime = std::chrono::seconds(1);
/// The other end's reason travels beside the error that it caused, by another way, and is the better one.
constexpr Duration kDisconnectTime = std::chrono::milliseconds(100);

}  // namespace

UcxConnection::UcxConnection(UcxContext& context, Side side, uint32_t number, Connection* side_channel,
                             TimePoint deadline)
    : context_(context),
      number_(number),
      token_(random_bits()),
      side_channel_(context.side_channels(), side_channel, side, *this, deadline),
      sender_(context, *this),
      puts_(context, *this),
      gets_(context, *this) {}

std::string UcxConnection::describe() const { return fmt::format("{} {}", path(), side_channel_.ends()); }

absl::Status UcxConnection::start_handshake() {
  const std::string text = encode(context_.handshake_for(*this));
  for (const std::string& frame : frames_of(FrameKind::handshake, text, context_.side_channels().max_message_bytes())) {
    GRADRAIL_RETURN_IF_ERROR(side_channel_.send(frame));
  }
  return absl::OkStatus();
}

void UcxConnection::on_side_channel_message(std::string_view bytes) {
  const absl::StatusOr<Frame> frame = parse_frame(bytes);
  if (!frame.ok()) {
    return fail({frame.status().code(), fmt::format("{}: {}", describe(), message_of(frame.status()))});
  }
  if (frame->kind != FrameKind::handshake) {
    received_disconnect_ = true;
    const absl::Status said = absl::UnavailableError(
        fmt::format("{}: the peer {}: {}", describe(),
                    frame->kind == FrameKind::refused ? "refused the connection" : "closed the connection",
                    common::printable(frame->text)));
    // fail() keeps the first reason, but the peer's own is the better one (kDisconnectTime).
    if (state_ == State::failing || state_ == State::ending) cause_ = said;
    return fail(said);
  }
  if (state_ != State::handshake || handshake_text_.size() + frame->text.size() > kMaxHandshakeBytes) {
    return fail(absl::DataLossError(fmt::format("{}: a handshake too many", describe())));
  }
  handshake_text_ += frame->text;
  if (!frame->more) handshake_complete();
}

void UcxConnection::handshake_complete() {
  absl::StatusOr<Handshake> peer = parse_handshake(handshake_text_, UCP_API_MAJOR, UCP_API_MINOR);
  handshake_text_.clear();
  absl::Status status = peer.status();
  if (status.ok()) {
    peer_ = *std::move(peer);
    status = endpoint_.open(context_.worker(), peer_.worker_address, endpoint_failed, this);
  }
  // The call follows the opening of the endpoint: a peer that cannot be reached gets a refusal as its answer.
  if (status.ok() && side_channel_.accepted()) status = start_handshake();
  if (!status.ok()) return fail({status.code(), fmt::format("{}: {}", describe(), message_of(status))});
  state_ = State::open;
  sender_.start();
}

ucs_status_t UcxConnection::arrived(const Header& header, void* data, size_t bytes, const ucp_am_recv_param_t& param) {
  if (header.kind == MessageKind::hello) peer_said_hello_ = true;
  // Late data of a connection that ends must not reach its regions. The peer may already be ready in `handshake`.
  if (state_ != State::open && state_ != State::handshake) return UCS_ERR_CANCELED;
  const bool rendezvous = (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  // A peer may send data before our own hello is out. The owner still receives `connected` first.
  if (header.kind != MessageKind::hello) introduce();
  switch (header.kind) {
    case MessageKind::put:
      return puts_.arrived(header, data, bytes, param);
    case MessageKind::message:
      return message_arrived(header, data, bytes, rendezvous);
    case MessageKind::get_request:
      return sender_.answer(header);
    case MessageKind::get_data:
      return gets_.data_arrived(header, data, bytes, rendezvous);
    case MessageKind::hello:
      break;
  }
  if (proven()) introduce();
  return UCS_OK;
}

ucs_status_t UcxConnection::message_arrived(const Header& header, const void* data, size_t bytes, bool rendezvous) {
  if (header.sequence != next_message_++) {
    return refuse(absl::DataLossError("messages out of order: is UCX_MAX_EAGER_RAILS more than 1?"));
  }
  if (bytes > kMaxMessageBytes || rendezvous) {
    return refuse(absl::DataLossError(fmt::format("message of {} bytes", bytes)));
  }
  // UCX reclaims its data after the callback.
  common::MessageBuffer body = context_.buffers().take();
  if (bytes > 0) std::memcpy(body.get(), data, bytes);
  Completion message{.kind = Completion::Kind::message, .connection = this};
  message.message = {body.get(), bytes};
  context_.report(std::move(message), std::move(body));
  return UCS_OK;
}

void UcxConnection::introduce() {
  if (side_channel_.introduce()) context_.introduce(this);
}

void UcxConnection::on_hello_sent() {
  // The hello has left over the lanes, so the wire-up has chosen them.
  endpoint_.read_lanes();
  if (proven()) introduce();
}

void UcxConnection::confirm_alive() {
  if (state_ != State::open) return;
  puts_.confirm();
  gets_.confirm();
}

bool UcxConnection::serves_from(const Region& region) { return puts_.writes_to(region) || sender_.reads_from(region); }

void UcxConnection::endpoint_failed(void* connection, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxConnection*>(connection)->fail_native("the endpoint failed", status);
}

void UcxConnection::on_side_channel_lost(const absl::Status& cause) {
  context_.take_last_messages();
  fail(absl::UnavailableError(fmt::format("{}: the peer is lost: {}", describe(), message_of(cause))));
}

void UcxConnection::on_side_channel_misused() {
  fail(absl::DataLossError("ucx: the peer puts over the side channel, which is for handshakes only"));
}

void UcxConnection::fail(absl::Status cause) {
  if (state_ != State::handshake && state_ != State::open) return;
  GRADRAIL_CHECK(!cause.ok());
  const bool handshake = state_ == State::handshake;
  state_ = State::failing;
  cause_ = std::move(cause);
  send_reason(handshake ? FrameKind::refused : FrameKind::disconnect);
  // A callback of UCX may be running: the context closes the endpoint between two turns (invariant 3).
  context_.end_soon(this);
}

void UcxConnection::fail_native(std::string_view doing, ucs_status_t status) {
  const absl::Status error = native_error(doing, status);
  fail({error.code(), fmt::format("{}: {}", describe(), message_of(error))});
}

ucs_status_t UcxConnection::refuse(const absl::Status& why) {
  const std::string text = fmt::format("{}: refused the peer: {}", describe(), message_of(why));
  context_.rate_limited_log().write(text);
  fail({why.code(), text});
  return UCS_ERR_REJECTED;
}

void UcxConnection::send_reason(FrameKind kind) {
  if (!side_channel_.is_open() || received_disconnect_) return;
  const size_t frame_bytes = context_.side_channels().max_message_bytes();
  const std::string_view text = message_of(cause_).substr(0, frame_bytes / 2);  // size of one frame
  // The side channel may be full or lost: then the peer gets no reason.
  side_channel_.send(frames_of(kind, text, frame_bytes).front()).IgnoreError();
}

void UcxConnection::begin_end() {
  GRADRAIL_CHECK(state_ == State::failing && !cause_.ok());
  const TimePoint now = Clock::now();
  end_deadline_ = now + kEndTime;
  // A refusal and a loss of the side channel are their own reason; an error of UCX's may be the peer's refusal.
  disconnect_deadline_ =
      cause_.code() == absl::StatusCode::kUnavailable && !received_disconnect_ ? now + kDisconnectTime : now;
  close_endpoint();
}

void UcxConnection::leave() {
  if (state_ != State::ending) state_ = State::failing;
  // The close is first: it notifies the peer while its device or processor can still read memory that may change here.
  side_channel_.close();
  close_endpoint();
}

void UcxConnection::close_endpoint() {
  if (closable()) endpoint_.close();
  sender_.drop_waiting();
  puts_.drop_held();
  state_ = State::ending;
}

bool UcxConnection::released() const { return endpoint_.released() && sender_.idle() && puts_.idle() && gets_.idle(); }

bool UcxConnection::try_release() {
  if (closable()) endpoint_.close();
  return released();
}

bool UcxConnection::ended(TimePoint now) const {
  if (now >= end_deadline_) return true;
  return (released() || abandoned()) &&
         (!side_channel_.is_open() || received_disconnect_ || now >= disconnect_deadline_);
}

void UcxConnection::reap() {
  GRADRAIL_CHECK(state_ == State::ending || state_ == State::lost);
  endpoint_.reap();
  side_channel_.close();
  if (!released() && !abandoned()) {
    context_.rate_limited_log().write(fmt::format("{}: UCX has not released the memory of this connection", describe()),
                                      LogLevel::error);
  }
  state_ = State::lost;
}

}  // namespace gradrail::transport::ucx
