// The poll loop.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "transport/ucx/context.h"

namespace gradrail::transport::ucx {
namespace {

/// Turns of UCX's progress in one poll: enough to drain the arrivals, few enough for the other contexts of the thread.
constexpr int kTurnsPerPoll = 16;
/// Maximum number of turns that take the last messages of a lost peer out of the queues, as long as each finds some.
constexpr int kLastTurns = 1000;
/// Time limit of the release. UCX releases a closed endpoint's memory within milliseconds; a device that does not
/// answer may take this long.
constexpr Duration kReleaseTime = std::chrono::seconds(5);

}  // namespace

size_t UcxContext::poll(absl::Span<Completion> out) {
  ready_.release_delivered([this](common::MessageBuffer buffer) { buffers_.give_back(std::move(buffer)); });
  if (ready_.size() < out.size()) progress();
  return ready_.take(out);
}

void UcxContext::progress() {
  progress_worker();
  if (side_channels_.due()) poll_side_channels();
  if (!to_confirm_alive_.empty()) confirm_alive();
  // No callback of UCX runs here, so connections can be closed (invariant 3).
  if (!failing_.empty()) end_failed();
  if (!ending_.empty()) reap_ended();
  if (!abandoned_.empty()) std::erase_if(abandoned_, [](const auto& each) { return each->try_release(); });
}

void UcxContext::progress_worker() {
  // A transfer that waits for the check of the side channel ends the loop, so that its completion is reported soon.
  for (int turn = 0; turn < kTurnsPerPoll && to_confirm_alive_.empty(); ++turn) {
    if (ucp_worker_progress(worker_.get()) == 0) return;
    // Arrivals are reported immediately: another turn may find nothing and take as long. Over tcp it needs a system
    // call.
    if (!ready_.empty()) return;
  }
}

void UcxContext::confirm_alive_soon(UcxConnection* connection) {
  if (std::find(to_confirm_alive_.begin(), to_confirm_alive_.end(), connection) == to_confirm_alive_.end())
    to_confirm_alive_.push_back(connection);
}

void UcxContext::confirm_alive() {
  poll_side_channels();
  // A close that the side channels reported above has changed the state: that connection confirms nothing.
  for (UcxConnection* connection : std::exchange(to_confirm_alive_, {})) connection->confirm_alive();
}

// Messages that lost peers sent before their end are still in the queues.
void UcxContext::take_last_messages() {
  for (int turn = 0; turn < kLastTurns && ucp_worker_progress(worker_.get()) != 0; ++turn) {
  }
}

void UcxContext::end_failed() {
  for (UcxConnection* connection : std::exchange(failing_, {})) {
    connection->begin_end();
    ending_.push_back(connection);
  }
}

void UcxContext::reap_ended() {
  const TimePoint now = Clock::now();
  poll_side_channels();  // takes last messages
  for (UcxConnection* connection : std::exchange(ending_, {})) {
    if (!connection->ended(now)) {
      ending_.push_back(connection);
      continue;
    }
    connection->reap();
    if (!connection->side_channel().introduced()) {
      rate_limited_log_.write(message_of(connection->cause()));
      GRADRAIL_CHECK(pending_connections_ > 0);
      --pending_connections_;
      remove(connection);
      continue;
    }
    report({.kind = Completion::Kind::peer_lost, .connection = connection, .cause = connection->cause()});
  }
}

void UcxContext::finish(UcxConnection* connection) {
  const bool lost = connection->state() == UcxConnection::State::lost;
  if (!lost) connection->leave();
  const TimePoint deadline = Clock::now() + kReleaseTime;
  // An abandoned endpoint ends with its wire-up, for which this loop must not wait.
  while (!connection->released() && !connection->abandoned() && Clock::now() < deadline)
    ucp_worker_progress(worker_.get());
  connection->reap();
}

void UcxContext::region_ends(const Region& region) {
  for (const auto& connection : connections_) {
    if (connection == nullptr || !connection->serves_from(region)) continue;
    connection->fail(absl::FailedPreconditionError("ucx: a region was unregistered while the peer used it"));
  }
  end_failed();
  // Closed endpoints cancel their transfers, but UCX releases the region only in its progress.
  const auto in_use = [&](const auto& connection) { return connection != nullptr && connection->serves_from(region); };
  const TimePoint deadline = Clock::now() + kReleaseTime;
  while (std::any_of(connections_.begin(), connections_.end(), in_use) && Clock::now() < deadline) {
    ucp_worker_progress(worker_.get());
  }
}

ucs_status_t UcxContext::on_message(void* context, const void* header, size_t header_bytes, void* data, size_t bytes,
                                    const ucp_am_recv_param_t* param) {
  auto* const self = static_cast<UcxContext*>(context);
  const absl::StatusOr<Header> parsed = decode({static_cast<const std::byte*>(header), header_bytes});
  // Null: late messages of a closed connection, or of an unknown one.
  UcxConnection* const connection = parsed.ok() ? self->find(*parsed) : nullptr;
  const ucs_status_t status =
      connection == nullptr ? UCS_ERR_REJECTED : connection->arrived(*parsed, data, bytes, *param);
  // Only the sender of a rendezvous waits for an answer.
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return rendezvous || status == UCS_INPROGRESS ? status : UCS_OK;
}

UcxConnection* UcxContext::find(const Header& header) const {
  if (header.connection >= connections_.size()) return nullptr;
  UcxConnection* const connection = connections_[header.connection].get();
  return connection != nullptr && connection->token() == header.token ? connection : nullptr;
}

bool UcxContext::arm() {
  if (!ready_.empty() || !failing_.empty() || !ending_.empty() || !to_confirm_alive_.empty()) return false;
  // UCS_ERR_BUSY states that events are pending: the descriptor would not signal them.
  return side_channels_.arm() && ucp_worker_arm(worker_.get()) == UCS_OK;
}

}  // namespace gradrail::transport::ucx
