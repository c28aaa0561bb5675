// Set-up of connections: the side channel, the handshakes on it, and its later messages.
#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/ucx/context.h"

namespace gradrail::transport::ucx {
namespace {

/// Time that connect() waits for the peer's handshake and then for the path. The handshake arrives immediately if the
/// peer polls. Both take milliseconds, and a second in an emulated machine. A peer that does not poll afterwards still
/// receives the data that was sent.
constexpr Duration kAnswerTime = std::chrono::seconds(2);
constexpr Duration kPathTime = std::chrono::seconds(10);
constexpr size_t kMaxPendingConnections = 64;
constexpr size_t kMaxConnections = 4096 + 256;  // 4,096 workers, and 256 that change their connections

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
  // Numbers are used again. The token in each header distinguishes the connections of one number.
  const auto free = std::find(connections_.begin(), connections_.end(), nullptr);
  const auto number = static_cast<uint32_t>(free - connections_.begin());
  const bool pending = side == UcxConnection::Side::accepted;
  if (number >= kMaxConnections || (pending && pending_connections_ >= kMaxPendingConnections)) {
    side_channels_.close(side_channel);
    return absl::ResourceExhaustedError(fmt::format("ucx: more than {} connections, or {} that have not greeted",
                                                    kMaxConnections, kMaxPendingConnections));
  }
  auto connection =
      std::make_unique<UcxConnection>(*this, side, number, side_channel, Clock::now() + common::kHandshakeTime);
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
  GRADRAIL_ASSIGN_OR_RETURN(Connection* const side_channel, side_channels_.connect(address, deadline));
  GRADRAIL_ASSIGN_OR_RETURN(UcxConnection* const adopted, adopt(side_channel, UcxConnection::Side::connected));
  if (absl::Status status = adopted->start_handshake(); !status.ok()) {
    close(adopted);
    return status;
  }
  await_path(*adopted, deadline);
  const auto state = adopted->state();
  if (state == UcxConnection::State::handshake || state == UcxConnection::State::open) return adopted;
  const absl::Status cause = adopted->cause();
  close(adopted);
  return absl::Status(cause.code(), fmt::format("ucx: connect to {}: {}", address, message_of(cause)));
}

// A peer that does not poll now does so later. Until then messages queue, other operations are refused, and a refusal
// arrives as peer_lost.
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
    if (side_channels_.arm() && ucp_worker_arm(worker_.get()) == UCS_OK) ::poll(&waiting_for, 1, 10);
  }
}

void UcxContext::introduce(UcxConnection* pending) {
  GRADRAIL_CHECK(pending_connections_ > 0);
  --pending_connections_;
  report({.kind = Completion::Kind::connected, .connection = pending});
}

void UcxContext::poll_side_channels() {
  side_channels_.poll([this](Connection* side_channel) { accept(side_channel); });
  close_silent_pending(side_channels_.polled_at());
}

void UcxContext::accept(Connection* side_channel) {
  const auto adopted = adopt(side_channel, UcxConnection::Side::accepted);
  if (!adopted.ok()) rate_limited_log_.write(message_of(adopted.status()));
}

void UcxContext::close_silent_pending(TimePoint now) {
  if (pending_connections_ == 0) return;
  for (const auto& each : connections_) {
    if (each == nullptr || each->side_channel().introduced() || now < each->side_channel().deadline()) continue;
    // A peer may take long after its handshake: registration of much memory stops its thread for seconds.
    if (each->state() == UcxConnection::State::handshake) {
      each->fail(absl::DeadlineExceededError(fmt::format("{}: no handshake in time", each->describe())));
    }
  }
}

}  // namespace gradrail::transport::ucx
