// Set-up and end of a connection; what is sent is in connection_datapath.cc, what arrives in connection_arrival.cc.
#include "transport/ucx/connection.h"

#include <utility>

#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"
#include "transport/ucx/context.h"
#include "transport/ucx/native_error.h"

namespace gradrail::transport::ucx {
namespace {

/// Operations of one connection in UCX's hands: enough to fill a 100 Gb/s link with 4 KiB puts for 40 us.
constexpr size_t kMaxOperations = 128;
/// UCX cancels at once what it can; a device that does not answer even that is given up.
constexpr Duration kEndTime = std::chrono::seconds(1);
/// The other end's reason travels beside the error that it caused, by another way, and is the better one.
constexpr Duration kDisconnectTime = std::chrono::milliseconds(100);
/// UCX reads an address as its own words say, not as its length does: behind the end there is something harmless.
constexpr size_t kAddressPaddingBytes = 4096;

std::string without_first_word(std::string text) { return text.erase(0, text.find(' ') + 1); }

}  // namespace

UcxConnection::UcxConnection(UcxContext& context, Side side, uint32_t number, Connection* side_channel,
                             TimePoint handshake_deadline)
    : context_(context),
      side_(side),
      number_(number),
      token_(random_bits()),
      handshake_deadline_(handshake_deadline),
      ends_(without_first_word(side_channel->describe())),
      side_channel_(side_channel),
      operations_(kMaxOperations),
      answers_(kMaxGets + 1) {  // and the hello
  side_channel->set_user_data(reinterpret_cast<uint64_t>(this));
}

UcxConnection::~UcxConnection() = default;

absl::StatusOr<RemoteRegion> UcxConnection::import(std::string_view key) {
  absl::StatusOr<RegionKey> parsed = RegionKey::parse(key);
  if (!parsed.ok()) return parsed.status();
  return imported_.add(*parsed);
}

absl::StatusOr<std::byte*> UcxConnection::map(RemoteRegion) {
  return absl::UnimplementedError("ucx does not map a peer's memory");
}

std::string UcxConnection::describe() const { return fmt::format("{} {}", path(), ends_); }

absl::Status UcxConnection::start_handshake() {
  const std::string text = encode(context_.handshake_for(*this));
  for (const std::string& frame : frames_of(FrameKind::handshake, text, context_.max_frame_bytes())) {
    GRADRAIL_RETURN_IF_ERROR(side_channel_->send({reinterpret_cast<const std::byte*>(frame.data()), frame.size()}));
  }
  return absl::OkStatus();
}

void UcxConnection::say(FrameKind kind, std::string_view text) {
  if (side_channel_ == nullptr) return;
  text = text.substr(0, context_.max_frame_bytes() / 2);  // one frame
  for (const std::string& frame : frames_of(kind, text, context_.max_frame_bytes())) {
    // It may be full or lost: then the peer gets no reason.
    side_channel_->send({reinterpret_cast<const std::byte*>(frame.data()), frame.size()}).IgnoreError();
  }
}

void UcxConnection::on_side_channel_message(std::string_view bytes) {
  const absl::StatusOr<Frame> frame = parse_frame(bytes);
  if (!frame.ok()) {
    return fail({frame.status().code(), fmt::format("ucx {}: {}", ends_, message_of(frame.status()))});
  }
  if (frame->kind != FrameKind::handshake) {
    received_disconnect_ = true;
    const absl::Status said = absl::UnavailableError(
        fmt::format("ucx {}: the peer {}: {}", ends_,
                    frame->kind == FrameKind::refused ? "refused the connection" : "gave up", frame->text));
    if (state_ == State::failing || state_ == State::ending) cause_ = said;
    return fail(said);
  }
  if (state_ != State::handshake || handshake_text_.size() + frame->text.size() > kMaxHandshakeBytes) {
    return fail(absl::DataLossError(fmt::format("ucx {}: a handshake too many", ends_)));
  }
  handshake_text_ += frame->text;
  if (!frame->more) handshake_complete();
}

void UcxConnection::handshake_complete() {
  absl::Status status;
  if (absl::StatusOr<Handshake> peer = parse_handshake(handshake_text_, UCP_API_MAJOR, UCP_API_MINOR); peer.ok()) {
    status = open_endpoint(*peer);
    peer_ = *std::move(peer);
  } else {
    status = peer.status();
  }
  handshake_text_.clear();
  if (status.ok() && side_ == Side::accepted) status = start_handshake();
  if (!status.ok()) return fail({status.code(), fmt::format("ucx {}: {}", ends_, message_of(status))});
  state_ = State::open;
  post_hello();
  post_early_messages();
  answer_early_requests();
}

absl::Status UcxConnection::open_endpoint(const Handshake& peer) {
  std::string address = peer.worker_address;
  address.resize(address.size() + kAddressPaddingBytes);
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = endpoint_failed, .arg = this};
  const ucs_status_t status = ucp_ep_create(context_.worker(), &params, &endpoint_);
  if (status != UCS_OK) {
    endpoint_ = nullptr;
    return native_error("reach the peer", status);
  }
  lanes_ = lanes_of(endpoint_);
  return absl::OkStatus();
}

void UcxConnection::endpoint_failed(void* connection, ucp_ep_h, ucs_status_t status) {
  auto* const self = static_cast<UcxConnection*>(connection);
  const absl::Status cause = native_error("the endpoint failed", status);
  self->fail({cause.code(), fmt::format("{}: {}", self->describe(), message_of(cause))});
}

void UcxConnection::side_channel_lost(const absl::Status& why) {
  context_.close_side_channel(std::exchange(side_channel_, nullptr));
  fail(absl::UnavailableError(fmt::format("ucx {}: the peer is gone: {}", ends_, message_of(why))));
}

void UcxConnection::fail(absl::Status cause) {
  if (state_ != State::handshake && state_ != State::open) return;
  const bool handshake = state_ == State::handshake;
  state_ = State::failing;
  cause_ = std::move(cause);
  if (side_channel_ != nullptr && !received_disconnect_) {
    say(handshake ? FrameKind::refused : FrameKind::disconnect, message_of(cause_));
  }
  context_.end_soon(this);
}

void UcxConnection::begin_end() {
  const TimePoint now = Clock::now();
  end_deadline_ = now + kEndTime;
  // A refusal and a loss of the side channel are their own reason; an error of UCX's may be the peer's refusal.
  disconnect_deadline_ =
      cause_.code() == absl::StatusCode::kUnavailable && !received_disconnect_ ? now + kDisconnectTime : now;
  if (closable()) close_endpoint();
  drop_held();
  state_ = State::ending;
}

void UcxConnection::leave() {
  if (state_ != State::ending) state_ = State::failing;
  // First: once the peer's device or processor can still read what we may change, its side channel must tell it so.
  if (side_channel_ != nullptr) context_.close_side_channel(std::exchange(side_channel_, nullptr));
  if (closable()) close_endpoint();
  drop_held();
  state_ = State::ending;
}

void UcxConnection::close_endpoint() {
  if (endpoint_ == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) close_request_ = request;
}

bool UcxConnection::released() const {
  if (endpoint_ != nullptr) return false;
  if (close_request_ != nullptr && ucp_request_check_status(close_request_) == UCS_INPROGRESS) return false;
  return operations_.all_back() && answers_.all_back() && receiving_ == 0;
}

bool UcxConnection::try_release() {
  if (closable()) close_endpoint();
  return released();
}

bool UcxConnection::ended(TimePoint now) {
  if (now >= end_deadline_) return true;
  return (released() || abandoned()) &&
         (side_channel_ == nullptr || received_disconnect_ || now >= disconnect_deadline_);
}

void UcxConnection::reap() {
  if (close_request_ != nullptr) ucp_request_free(std::exchange(close_request_, nullptr));
  if (side_channel_ != nullptr) context_.close_side_channel(std::exchange(side_channel_, nullptr));
  if (!released() && !abandoned()) spdlog::error("ucx {}: UCX has not let go of this connection's memory", ends_);
  state_ = State::lost;
}

void UcxConnection::drop_held() {
  for (const EarlyMessage& early : std::exchange(early_messages_, {})) give_back(early.operation);
  arrivals_.for_each([&](Arrival& arrival) {
    if (arrival.held != nullptr) ucp_am_data_release(context_.worker(), std::exchange(arrival.held, nullptr));
    arrival.copy.reset();
  });
}

bool UcxConnection::serves_from(const Region& region) {
  bool serves = false;
  arrivals_.for_each(
      [&](const Arrival& arrival) { serves = serves || (arrival.writes() && arrival.region == &region); });
  for (const Operation& answer : answers_.slots()) serves = serves || answer.region == &region;
  return serves;
}

}  // namespace gradrail::transport::ucx
