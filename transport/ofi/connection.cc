// Setting up and ending. The data path is in connection_datapath.cc.
#include "transport/ofi/connection.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/common/byte_codec.h"
#include "transport/ofi/context.h"

namespace gradrail::transport::ofi {
namespace {

std::string path_of(const Provider& provider) {
  return provider.device.empty() ? fmt::format("ofi {}", provider.name)
                                 : fmt::format("ofi {} {}", provider.name, provider.device);
}

}  // namespace

OfiConnection::OfiConnection(OfiContext& context, Connection* side_channel, Side side, TimePoint deadline)
    : context_(context),
      side_channel_(context.side_channels(), side_channel, side, *this, deadline),
      name_(fmt::format("{} {}", path_of(context.provider()), side_channel_.ends())),
      state_(side == Side::accepted ? State::pending : State::handshake),
      transfers_(context.provider()),
      watch_(context.path_timeout()) {}

OfiConnection::~OfiConnection() {
  // The peer should learn of the end now: a device can take a while to end its transfers.
  side_channel_.close();
  release_link();
}

std::string OfiConnection::path() const { return path_of(context_.provider()); }

bool OfiConnection::uses_rdma() const { return context_.provider().rdma; }

absl::Status OfiConnection::open_link() {
  GRADRAIL_CHECK(link_ == nullptr && waits_for_hello());  // invariant 1
  const Provider& provider = context_.provider();
  std::unique_ptr<Domain> own;
  // A key that the provider chooses can be guessed: a separate domain keeps an accepted peer out of all other memory.
  // FI_MR_ENDPOINT needs a domain with one endpoint, to which the regions are bound.
  if (provider.binds_regions || (provider.chooses_keys && side_channel_.accepted())) {
    GRADRAIL_ASSIGN_OR_RETURN(own, context_.open_domain());
  }
  GRADRAIL_ASSIGN_OR_RETURN(
      link_, Link::open(context_.fabric(), context_.default_domain(), std::move(own), side_channel_.accepted()));
  context_.watch(link_->endpoint().wait_fd());
  context_.watch(link_->endpoint().event_fd());
  return absl::OkStatus();
}

void OfiConnection::release_link() {
  if (link_ == nullptr) return;
  context_.unwatch(link_->endpoint().wait_fd());
  context_.unwatch(link_->endpoint().event_fd());
  // No registration may outlive its domain (Region, invariant 2).
  if (link_->has_own_domain()) context_.regions().forget(link_->domain());
  GRADRAIL_CHECK(retired_ == nullptr);
  // The buffers of the link contain messages that are reported and that the owner has not read yet.
  retired_ = std::move(link_);
  context_.defer_close(retired_);
}

EndpointHello OfiConnection::own_hello() const {
  const Provider& provider = context_.provider();
  EndpointHello hello{.provider = provider.name,
                      .immediate_bits = static_cast<uint8_t>(provider.immediate_bits),
                      .message_bytes = kMaxMessageBytes,
                      .receives = kReceives};
  // The accepting side compares two hellos before it opens anything.
  if (link_ == nullptr) return hello;
  hello.token = link_->messages().token();
  hello.mailbox_key = link_->mailbox_memory().key;
  hello.mailbox_base = link_->mailbox_memory().base;
  hello.address = link_->endpoint().address();
  return hello;
}

absl::Status OfiConnection::start_handshake() {
  GRADRAIL_RETURN_IF_ERROR(open_link());
  return side_channel_.send(encode(own_hello()));
}

void OfiConnection::on_side_channel_message(std::string_view message) {
  if (lost()) return;
  const absl::StatusOr<ControlMessage> decoded = decode(common::as_bytes(message));
  absl::Status status = decoded.status();
  if (status.ok()) status = handle_control_message(*decoded);
  if (!status.ok()) lose(std::move(status));
}

absl::Status OfiConnection::handle_control_message(const ControlMessage& message) {
  if (const auto* disconnect = std::get_if<Disconnect>(&message)) {
    side_channel_.close();  // the reason is known
    lose(absl::UnavailableError(fmt::format("{}: the peer closed the connection: {}", name_, disconnect->reason)));
    return absl::OkStatus();
  }
  if (const auto* hello = std::get_if<EndpointHello>(&message)) return handle_hello(*hello);
  if (state_ != State::open) return absl::DataLossError("ofi: no hello");
  if (const auto* request = std::get_if<Request>(&message)) return answer(*request);
  if (const auto* probe = std::get_if<Probe>(&message)) return side_channel_.send(encode(Reply{probe->number}));
  if (const auto* reply = std::get_if<Reply>(&message)) {
    watch_.answered(reply->number);
    return absl::OkStatus();
  }
  return handle_grant(std::get<Grant>(message));
}

absl::Status OfiConnection::handle_hello(const EndpointHello& hello) {
  if (!waits_for_hello()) return absl::DataLossError("ofi: second hello");
  // This check precedes the opening of any resource: a peer that does not match costs nothing.
  GRADRAIL_RETURN_IF_ERROR(compare(own_hello(), hello));
  if (side_channel_.accepted()) {
    GRADRAIL_RETURN_IF_ERROR(open_link());
  }
  // The call precedes the answer: the peer may transfer as soon as it has our hello.
  GRADRAIL_RETURN_IF_ERROR(link_->set_peer(hello.address, hello.token));
  link_->messages().set_peer(hello.receives, hello.token);
  transfers_.set_mailbox(hello.mailbox_key, hello.mailbox_base);
  if (side_channel_.accepted()) {
    GRADRAIL_RETURN_IF_ERROR(side_channel_.send(encode(own_hello())));
  }
  state_ = State::open;
  if (side_channel_.introduce()) context_.report({.kind = Completion::Kind::connected, .connection = this});
  // libfabric connects at the first message, and one side is enough.
  if (!side_channel_.accepted()) link_->messages().send_probe();
  return pump();
}

absl::Status OfiConnection::answer(const Request& request) {
  const absl::StatusOr<const Region*> region = context_.regions().find(request.key);
  // The caller ends the connection: the disconnect is the refusal and carries this reason.
  if (!region.ok()) return region.status();
  GRADRAIL_ASSIGN_OR_RETURN(const Registration* const open, (*region)->open_in(link_->domain()));
  return side_channel_.send(encode(Grant{request.number, open->key, open->base}));
}

absl::Status OfiConnection::handle_grant(const Grant& grant) {
  GRADRAIL_RETURN_IF_ERROR(imports_.grant(grant));
  // Transfers will follow: what is registered now does not delay the first of them.
  if (link_->has_own_domain() && !prepared_) {
    GRADRAIL_RETURN_IF_ERROR(context_.regions().prepare(link_->domain()));
  }
  prepared_ = true;
  return absl::OkStatus();
}

absl::StatusOr<RemoteRegion> OfiConnection::import(std::string_view key) {
  GRADRAIL_ASSIGN_OR_RETURN(const RegionKey parsed, RegionKey::parse(key));
  if (lost()) return lost_error();
  GRADRAIL_ASSIGN_OR_RETURN(const Request request, imports_.request(parsed));
  GRADRAIL_RETURN_IF_ERROR(side_channel_.send(encode(request)));
  return imports_.add(parsed);
}

void OfiConnection::on_side_channel_misused() {
  lose(absl::DataLossError("ofi: the peer uses tcp: use the same transport on both sides"));
}

void OfiConnection::on_side_channel_lost(const absl::Status& cause) {
  if (lost()) return;
  while (link_ != nullptr && read_queue()) {  // takes earlier arrivals
  }
  lose(absl::UnavailableError(fmt::format("{}: {}", name_, message_of(cause))));
}

void OfiConnection::check_deadline(TimePoint now) {
  if (!waits_for_hello() || now < side_channel_.deadline()) return;
  lose(absl::DeadlineExceededError(
      fmt::format("{}: no handshake in time (is the peer's transport ofi, and does it poll?)", name_)));
}

void OfiConnection::lose(absl::Status cause) {
  if (lost()) return;
  GRADRAIL_CHECK(!cause.ok());
  state_ = State::lost;
  if (cause.message().find(name_) == absl::string_view::npos) {
    cause = absl::Status(cause.code(), fmt::format("{}: {}", name_, message_of(cause)));
  }
  // The owner decides about an end that the peer chose, and the log of the owner has it if it was an error.
  context_.rate_limited_log().write(message_of(cause), side_channel_.is_open() ? LogLevel::warn : LogLevel::info);
  cause_ = cause;
  if (side_channel_.is_open()) {
    side_channel_.send(encode(Disconnect{std::string(message_of(cause))})).IgnoreError();  // it may have ended too
    side_channel_.close();
  }
  release_link();
  // The owner does not have this connection; drop_lost_pending() removes it.
  if (!side_channel_.introduced()) return;
  context_.report({.kind = Completion::Kind::peer_lost, .connection = this, .cause = std::move(cause)});
}

}  // namespace gradrail::transport::ofi
