// Setting up and ending. The data path is in connection_datapath.cc.
#include "transport/ofi/connection.h"

#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"
#include "transport/ofi/context.h"

namespace gradrail::transport::ofi {
namespace {

/// Two step's worth of 1 MiB buckets for a 500 MB shard, as with tcp; an entry is 100 B.
constexpr size_t kMaxPuts = 1024;
constexpr size_t kMaxGets = 256;
/// RDMA devices take 16 reads of one connection at a time, more would only wait in the device.
constexpr size_t kGetPieces = 16;
/// A peer that keeps asking is broken: a task opens a handful of regions.
constexpr size_t kMaxImports = 65536;

std::string path_of(const Provider& provider) {
  return provider.device.empty() ? fmt::format("ofi {}", provider.name)
                                 : fmt::format("ofi {} {}", provider.name, provider.device);
}

std::string name_of(const Provider& provider, const Connection& side_channel) {
  const std::string ends = side_channel.describe();  // "tcp a > b"
  return fmt::format("{} {}", path_of(provider), ends.substr(ends.find(' ') + 1));
}

}  // namespace

OfiConnection::OfiConnection(OfiContext& context, Connection* side_channel, bool accepted, TimePoint deadline)
    : context_(context),
      accepted_(accepted),
      deadline_(deadline),
      name_(name_of(context.provider(), *side_channel)),
      side_channel_(side_channel),
      state_(accepted ? State::pending : State::handshake),
      puts_(Operation::Kind::put, kMaxPuts, context.provider().ordered ? context.provider().pieces_in_flight : 1,
            context.provider().piece_bytes, context.provider().confirms_writes),
      gets_(Operation::Kind::get, kMaxGets, kGetPieces, context.provider().piece_bytes) {}

OfiConnection::~OfiConnection() {
  // The peer should hear of it now: ending what is under way can take a device a while.
  if (side_channel_ != nullptr) context_.side_channel().close(side_channel_);
  release_link();
}

std::string OfiConnection::path() const { return path_of(context_.provider()); }

bool OfiConnection::uses_rdma() const { return context_.provider().rdma; }

absl::Status OfiConnection::open_link() {
  const Provider& provider = context_.provider();
  std::unique_ptr<Domain> own;
  if (provider.binds_regions || (provider.chooses_keys && accepted_)) {
    absl::StatusOr<std::unique_ptr<Domain>> opened = context_.open_domain();
    if (!opened.ok()) return opened.status();
    own = *std::move(opened);
  }
  absl::StatusOr<std::unique_ptr<Link>> link =
      Link::open(context_.fabric(), context_.default_domain(), std::move(own), accepted_);
  if (!link.ok()) return link.status();
  link_ = *std::move(link);
  context_.watch(link_->endpoint().wait_fd());
  context_.watch(link_->endpoint().event_fd());
  return absl::OkStatus();
}

void OfiConnection::release_link() {
  if (link_ == nullptr) return;
  context_.unwatch(link_->endpoint().wait_fd());
  context_.unwatch(link_->endpoint().event_fd());
  if (link_->has_own_domain()) context_.regions().forget(link_->domain());
  retired_ = std::move(link_);
  context_.defer_close(retired_);
}

EndpointHello OfiConnection::own_hello() const {
  const Provider& provider = context_.provider();
  EndpointHello hello{.provider = provider.name,
                      .immediate_bits = static_cast<uint8_t>(provider.immediate_bits),
                      .message_bytes = kMaxMessageBytes,
                      .receives = kReceives};
  if (link_ == nullptr) return hello;
  hello.token = link_->messages().token();
  hello.mailbox_key = link_->mailbox_memory().key;
  hello.mailbox_base = link_->mailbox_memory().base;
  hello.address = link_->endpoint().address();
  return hello;
}

absl::Status OfiConnection::say(const std::string& words) {
  return side_channel_->send({reinterpret_cast<const std::byte*>(words.data()), words.size()});
}

absl::Status OfiConnection::start_handshake() {
  if (absl::Status status = open_link(); !status.ok()) return status;
  return say(encode(own_hello()));
}

void OfiConnection::hear(absl::Span<const std::byte> message) {
  if (lost()) return;
  const absl::StatusOr<ControlMessage> word = decode(message);
  absl::Status status = word.status();
  if (status.ok()) status = handle_control_message(*word);
  if (!status.ok()) lose(std::move(status));
}

absl::Status OfiConnection::handle_control_message(const ControlMessage& word) {
  if (const auto* disconnect = std::get_if<Disconnect>(&word)) {
    context_.side_channel().close(std::exchange(side_channel_, nullptr));  // the reason is known
    lose(absl::UnavailableError(fmt::format("{}: the peer gave up: {}", name_, disconnect->reason)));
    return absl::OkStatus();
  }
  if (const auto* hello = std::get_if<EndpointHello>(&word)) return handle_hello(*hello);
  if (state_ != State::open) return absl::DataLossError("ofi: no hello");
  if (const auto* request = std::get_if<Request>(&word)) return answer(*request);
  return handle_grant(std::get<Grant>(word));
}

absl::Status OfiConnection::handle_hello(const EndpointHello& hello) {
  if (!waits_for_hello()) return absl::DataLossError("ofi: second hello");
  // This check comes before any resource is opened: a peer that does not match costs nothing.
  if (absl::Status status = compare(own_hello(), hello); !status.ok()) return status;
  if (accepted_) {
    if (absl::Status status = open_link(); !status.ok()) return status;
  }
  if (absl::Status status = link_->set_peer(hello.address, hello.token); !status.ok()) return status;
  link_->messages().set_peer(hello.receives, hello.token);
  mailbox_key_ = hello.mailbox_key;
  mailbox_base_ = hello.mailbox_base;
  if (accepted_) {
    if (absl::Status status = say(encode(own_hello())); !status.ok()) return status;
  }
  state_ = State::open;
  if (accepted_) {
    Completion connected;
    connected.kind = Completion::Kind::connected;
    connected.connection = this;
    reported_ = true;
    context_.report(std::move(connected));
  }
  if (!accepted_) link_->messages().send_probe();
  return pump();
}

absl::Status OfiConnection::answer(const Request& request) {
  const absl::StatusOr<const Region*> region = context_.regions().find(request.key);
  if (!region.ok()) return region.status();
  const absl::StatusOr<const Registration*> open = (*region)->open_in(link_->domain());
  if (!open.ok()) return open.status();
  return say(encode(Grant{request.number, (*open)->key, (*open)->base}));
}

absl::Status OfiConnection::handle_grant(const Grant& grant) {
  Import* const import = imports_.find(static_cast<RemoteRegion>(grant.number));
  if (import == nullptr || import->granted) {
    return absl::DataLossError("ofi: answer to a question that was not asked");
  }
  // Transfers will follow: what is registered now does not delay the first of them.
  if (link_->has_own_domain() && !prepared_) {
    if (absl::Status status = context_.regions().prepare(link_->domain()); !status.ok()) return status;
  }
  prepared_ = true;
  import->granted = true;
  import->device_key = grant.key;
  import->base = grant.base;
  return absl::OkStatus();
}

absl::StatusOr<RemoteRegion> OfiConnection::import(std::string_view key) {
  const absl::StatusOr<RegionKey> parsed = RegionKey::parse(key);
  if (!parsed.ok()) return parsed.status();
  if (lost()) return absl::UnavailableError(fmt::format("{}: the peer is lost", name_));
  if (imports_.size() >= kMaxImports) return absl::ResourceExhaustedError("ofi: too many imported regions");
  const auto number = static_cast<uint32_t>(imports_.size() + 1);
  if (absl::Status status = say(encode(Request{number, *parsed})); !status.ok()) return status;
  return imports_.add({.key = *parsed});
}

void OfiConnection::side_channel_lost(const absl::Status& cause) {
  context_.side_channel().close(std::exchange(side_channel_, nullptr));
  if (lost()) return;
  while (link_ != nullptr && read_queue()) {  // what had arrived before
  }
  lose(absl::UnavailableError(fmt::format("{}: {}", name_, message_of(cause))));
}

void OfiConnection::check_deadline(TimePoint now) {
  if (!waits_for_hello() || now < deadline_) return;
  lose(absl::DeadlineExceededError(
      fmt::format("{}: no handshake in time (is the peer's transport ofi, and does it poll?)", name_)));
}

void OfiConnection::lose(absl::Status cause) {
  if (lost()) return;
  const bool reports = !never_reported();
  state_ = State::lost;
  if (cause.message().find(name_) == absl::string_view::npos) {
    cause = absl::Status(cause.code(), fmt::format("{}: {}", name_, message_of(cause)));
  }
  // An end that the peer chose is for our owner to judge, and was logged there if it was an error.
  spdlog::log(side_channel_ == nullptr ? spdlog::level::info : spdlog::level::warn, "{}", message_of(cause));
  cause_ = cause;
  if (side_channel_ != nullptr) {
    say(encode(Disconnect{std::string(message_of(cause))})).IgnoreError();  // it may be gone as well
    context_.side_channel().close(std::exchange(side_channel_, nullptr));
  }
  release_link();
  if (!reports) return;
  Completion lost;
  lost.kind = Completion::Kind::peer_lost;
  lost.connection = this;
  lost.cause = std::move(cause);
  context_.report(std::move(lost));
}

}  // namespace gradrail::transport::ofi
