// How connections come about: the lifeline, the greetings on it, and what it says later.
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
constexpr Duration kGreetingTime = std::chrono::seconds(5);
/// How long connect() waits for the peer's greeting, which comes at once when the peer polls, and then for the path.
/// Both take milliseconds, a second in an emulated machine. Whoever does not poll afterwards can count on what it
/// sends.
constexpr Duration kAnswerTime = std::chrono::seconds(2);
constexpr Duration kPathTime = std::chrono::seconds(10);
constexpr size_t kMaxStrangers = 64;
constexpr size_t kMaxConnections = 1024;

}  // namespace

Greeting UcxContext::greeting_for(const UcxConnection& connection) const {
  return {.context = id_,
          .connection = connection.number(),
          .token = connection.token(),
          .ucx_major = UCP_API_MAJOR,
          .ucx_minor = UCP_API_MINOR,
          .worker_address = worker_address_};
}

absl::StatusOr<UcxConnection*> UcxContext::adopt(Connection* lifeline, UcxConnection::Side side) {
  const auto free = std::find(connections_.begin(), connections_.end(), nullptr);
  const auto number = static_cast<uint32_t>(free - connections_.begin());
  const bool stranger = side == UcxConnection::Side::accepted;
  if (number >= kMaxConnections || (stranger && strangers_ >= kMaxStrangers)) {
    return absl::ResourceExhaustedError(
        fmt::format("ucx: more than {} connections, or {} that have not greeted", kMaxConnections, kMaxStrangers));
  }
  auto connection = std::make_unique<UcxConnection>(*this, side, number, lifeline, Clock::now() + kGreetingTime);
  UcxConnection* const adopted = connection.get();
  if (free == connections_.end()) {
    connections_.push_back(std::move(connection));
  } else {
    *free = std::move(connection);
  }
  strangers_ += stranger ? 1 : 0;
  return adopted;
}

absl::StatusOr<Connection*> UcxContext::connect(const std::string& address, TimePoint deadline) {
  const absl::StatusOr<Connection*> lifeline = lifelines_->connect(address, deadline);
  if (!lifeline.ok()) return lifeline.status();
  const absl::StatusOr<UcxConnection*> adopted = adopt(*lifeline, UcxConnection::Side::connected);
  if (!adopted.ok()) {
    lifelines_->close(*lifeline);
    return adopted.status();
  }
  if (absl::Status status = (*adopted)->greet(); !status.ok()) {
    close(*adopted);
    return status;
  }
  await_path(**adopted, deadline);
  const auto state = (*adopted)->state();
  if (state == UcxConnection::State::greeting || state == UcxConnection::State::open) return *adopted;
  const absl::Status cause = (*adopted)->cause();
  close(*adopted);
  return absl::Status(cause.code(), fmt::format("ucx: connect to {}: {}", address, message_of(cause)));
}

// A peer that does not poll now does so later: until then messages queue, everything else is refused for the moment,
// and a refusal arrives as peer_lost.
void UcxContext::await_path(const UcxConnection& connection, TimePoint deadline) {
  const auto waiting = [&] {
    const auto state = connection.state();
    return state == UcxConnection::State::greeting || (state == UcxConnection::State::open && !connection.proven());
  };
  const TimePoint start = Clock::now();
  const auto patience = [&] { return connection.state() == UcxConnection::State::greeting ? kAnswerTime : kPathTime; };
  while (waiting() && Clock::now() < std::min(deadline, start + patience())) {
    progress_worker();
    poll_lifelines();
    if (!waiting()) return;
    pollfd waiting_for{.fd = wait_fd(), .events = POLLIN, .revents = 0};
    if (lifelines_->arm() && ucp_worker_arm(worker_.get()) == UCS_OK) ::poll(&waiting_for, 1, 10);
  }
}

void UcxContext::introduce(UcxConnection* stranger) {
  --strangers_;
  report({.kind = Completion::Kind::connected, .connection = stranger});
}

void UcxContext::poll_lifelines() {
  std::array<Completion, 16> events;
  lifelines_looked_at_ = Clock::now();
  while (const size_t count = lifelines_->poll(absl::MakeSpan(events))) {
    for (size_t i = 0; i < count; ++i) on_lifeline(events[i]);
    for (Connection* lifeline : std::exchange(unwanted_, {})) lifelines_->close(lifeline);
  }
  dismiss_silent_strangers(lifelines_looked_at_);
}

void UcxContext::on_lifeline(const Completion& event) {
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
    connection->lifeline_says({reinterpret_cast<const char*>(event.message.data()), event.message.size()});
  } else if (event.kind == Completion::Kind::peer_lost) {
    take_last_messages();
    connection->lifeline_lost(event.cause);
  } else {
    connection->fail(absl::DataLossError("ucx: the peer puts over the lifeline, which is for greetings only"));
  }
}

void UcxContext::dismiss_silent_strangers(TimePoint now) {
  if (strangers_ == 0) return;
  for (const auto& each : connections_) {
    if (each == nullptr || each->known_to_owner() || now < each->greeting_deadline()) continue;
    // Whoever has greeted may take long: registering much memory stops its thread for seconds.
    if (each->state() == UcxConnection::State::greeting)
      each->fail(absl::DeadlineExceededError("ucx: no greeting came"));
  }
}

}  // namespace gradrail::transport::ucx
