// How connections come about: the side channel, the handshakes on it, and what it says later.
#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"
#include "transport/ucx/context.h"

namespace gradrail::transport::ucx {
namespace {

/// An accepted connection that has not greeted by then is closed, as over tcp.
constexpr Duration kHandshakeTime = std::chrono::seconds(5);
/// Time that connect() waits for the peer's handshake and then for the path. The handshake comes at once when the peer
/// polls. Both take milliseconds, and a second in an emulated machine. A peer that does not poll afterwards still
/// receives the data that was sent.
constexpr Duration kAnswerTime = std::chrono::seconds(2);
constexpr Duration kPathTime = std::chrono::seconds(10);
constexpr size_t kMaxPendingConnections = 64;
constexpr size_t kMaxConnections = 1024;

}  // namespace

Handshake UcxContext::handshake_for(const UcxConnection& connection) const {
  return {.context = id_,
          .connection = connection.number(),
          .token = connection.token(),
          .ucx_major = UCP_API_MAJOR,
          .ucx_minor = UCP_API_MINOR,
          .worker_address = worker_address_};
}

absl::StatusOr<UcxConnection*> UcxContext::adopt(Connection* side_channel, UcxConnection::Side side) {
  const auto free = std::find(connections_.begin(), connections_.end(), nullptr);
  const auto number = static_cast<uint32_t>(free - connections_.begin());
  const bool pending = side == UcxConnection::Side::accepted;
  if (number >= kMaxConnections || (pending && pending_connections_ >= kMaxPendingConnections)) {
    return absl::ResourceExhaustedError(fmt::format("ucx: more than {} connections, or {} that have not greeted",
                                                    kMaxConnections, kMaxPendingConnections));
  }
  auto connection = std::make_unique<UcxConnection>(*this, side, number, side_channel, Clock::now() + kHandshakeTime);
  UcxConnection* const adopted = connection.get();
  if (free == connections_.end()) {
    connections_.push_back(std::move(connection));
  } else {
    *free = std::move(connection);
  }
  pending_connections_ += pending ? 1 : 0;
  return adopted;
}

absl::StatusOr<Connection*> UcxContext::connect(const std::string& address, TimePoint deadline) {
  const absl::StatusOr<Connection*> side_channel = side_channels_->connect(address, deadline);
  if (!side_channel.ok()) return side_channel.status();
  const absl::StatusOr<UcxConnection*> adopted = adopt(*side_channel, UcxConnection::Side::connected);
  if (!adopted.ok()) {
    side_channels_->close(*side_channel);
    return adopted.status();
  }
  if (absl::Status status = (*adopted)->start_handshake(); !status.ok()) {
    close(*adopted);
    return status;
  }
  await_path(**adopted, deadline);
  const auto state = (*adopted)->state();
  if (state == UcxConnection::State::handshake || state == UcxConnection::State::open) return *adopted;
  const absl::Status cause = (*adopted)->cause();
  close(*adopted);
  return absl::Status(cause.code(), fmt::format("ucx: connect to {}: {}", address, message_of(cause)));
}

// A peer that does not poll now does so later. Until then messages queue, other operations are refused for the moment,
// and a refusal arrives as peer_lost.
void UcxContext::await_path(const UcxConnection& connection, TimePoint deadline) {
  const auto waiting = [&] {
    const auto state = connection.state();
    return state == UcxConnection::State::handshake || (state == UcxConnection::State::open && !connection.proven());
  };
  const TimePoint start = Clock::now();
  const auto timeout = [&] { return connection.state() == UcxConnection::State::handshake ? kAnswerTime : kPathTime; };
  while (waiting() && Clock::now() < std::min(deadline, start + timeout())) {
    progress_worker();
    poll_side_channels();
    if (!waiting()) return;
    pollfd waiting_for{.fd = wait_fd(), .events = POLLIN, .revents = 0};
    if (side_channels_->arm() && ucp_worker_arm(worker_.get()) == UCS_OK) ::poll(&waiting_for, 1, 10);
  }
}

void UcxContext::introduce(UcxConnection* pending) {
  --pending_connections_;
  report({.kind = Completion::Kind::connected, .connection = pending});
}

void UcxContext::poll_side_channels() {
  std::array<Completion, 16> events;
  side_channels_polled_at_ = Clock::now();
  while (const size_t count = side_channels_->poll(absl::MakeSpan(events))) {
    for (size_t i = 0; i < count; ++i) on_side_channel(events[i]);
    for (Connection* side_channel : std::exchange(unwanted_, {})) side_channels_->close(side_channel);
  }
  close_silent_pending(side_channels_polled_at_);
}

void UcxContext::on_side_channel(const Completion& event) {
  if (event.kind == Completion::Kind::connected) {
    const auto adopted = adopt(event.connection, UcxConnection::Side::accepted);
    if (adopted.ok()) return;
    spdlog::warn("{}", message_of(adopted.status()));
    unwanted_.push_back(event.connection);  // closed when no event of this batch speaks of it any more
    return;
  }
  auto* const connection = reinterpret_cast<UcxConnection*>(event.connection->user_data());
  if (connection == nullptr) return;
  if (event.kind == Completion::Kind::message) {
    connection->on_side_channel_message({reinterpret_cast<const char*>(event.message.data()), event.message.size()});
  } else if (event.kind == Completion::Kind::peer_lost) {
    take_last_messages();
    connection->side_channel_lost(event.cause);
  } else {
    connection->fail(absl::DataLossError("ucx: the peer puts over the side channel, which is for handshakes only"));
  }
}

void UcxContext::close_silent_pending(TimePoint now) {
  if (pending_connections_ == 0) return;
  for (const auto& each : connections_) {
    if (each == nullptr || each->known_to_owner() || now < each->handshake_deadline()) continue;
    // A peer may take long after its handshake: registration of much memory stops its thread for seconds.
    if (each->state() == UcxConnection::State::handshake)
      each->fail(absl::DeadlineExceededError("ucx: no handshake came"));
  }
}

}  // namespace gradrail::transport::ucx
