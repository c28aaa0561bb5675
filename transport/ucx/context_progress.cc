// The poll loop.
#include <algorithm>
#include <utility>

#include "base/status.h"
#include "spdlog/spdlog.h"
#include "transport/ucx/context.h"

namespace gradrail::transport::ucx {
namespace {

/// A look at the side channels is a system call, or several: not in every turn of a busy loop, not even the clock.
constexpr uint32_t kLookEvery = 64;
constexpr Duration kLookInterval = std::chrono::milliseconds(1);
/// Turns of UCX's progress in one poll: enough to drain what came, few enough for the other contexts of the thread.
constexpr int kTurnsPerPoll = 16;
/// After the loss of a peer its last messages are taken out of the queues, as long as this many turns find some.
constexpr int kLastTurns = 1000;
/// UCX lets go of a closed endpoint's memory within milliseconds; a device that does not answer may take this long.
constexpr Duration kReleaseTime = std::chrono::seconds(5);
/// Kept for reuse: what one poll of a usual caller can deliver.
constexpr size_t kSpareBuffers = 256;

}  // namespace

size_t UcxContext::poll(absl::Span<Completion> out) {
  for (MessageBuffer& buffer : delivered_) recycle(std::move(buffer));
  delivered_.clear();
  if (ready_.size() - next_ready_ < out.size()) progress();
  return take(out);
}

void UcxContext::progress() {
  progress_worker();
  if (armed_ || side_channels_due()) poll_side_channels();
  armed_ = false;
  if (!to_confirm_alive_.empty()) confirm_alive();
  if (!failing_.empty()) end_failed();
  if (!ending_.empty()) reap_ended();
  if (!abandoned_.empty()) std::erase_if(abandoned_, [](const auto& each) { return each->try_release(); });
}

void UcxContext::progress_worker() {
  for (int turn = 0; turn < kTurnsPerPoll && to_confirm_alive_.empty(); ++turn) {
    if (ucp_worker_progress(worker_.get()) == 0) return;
    // Arrivals are reported at once: another turn that finds nothing may cost as much; over tcp it costs a system call.
    if (next_ready_ < ready_.size()) return;
  }
}

bool UcxContext::side_channels_due() {
  return ++turn_ % kLookEvery == 0 && Clock::now() - side_channels_polled_at_ >= kLookInterval;
}

void UcxContext::confirm_alive_soon(UcxConnection* connection) {
  if (std::find(to_confirm_alive_.begin(), to_confirm_alive_.end(), connection) == to_confirm_alive_.end())
    to_confirm_alive_.push_back(connection);
}

void UcxContext::confirm_alive() {
  poll_side_channels();
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
  poll_side_channels();  // for last words
  for (UcxConnection* connection : std::exchange(ending_, {})) {
    if (!connection->ended(now)) {
      ending_.push_back(connection);
      continue;
    }
    connection->reap();
    if (!connection->known_to_owner()) {
      spdlog::warn("{}", message_of(connection->cause()));
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

void UcxContext::report(Completion completion, MessageBuffer body) {
  ready_.push_back({std::move(completion), std::move(body)});
}

size_t UcxContext::take(absl::Span<Completion> out) {
  size_t count = 0;
  for (; count < out.size() && next_ready_ < ready_.size(); ++next_ready_) {
    Ready& ready = ready_[next_ready_];
    out[count++] = std::move(ready.completion);
    if (ready.body != nullptr) delivered_.push_back(std::move(ready.body));
  }
  // A caller that never empties it must not make it grow.
  if (next_ready_ == ready_.size() || next_ready_ >= kSpareBuffers) {
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<ptrdiff_t>(next_ready_));
    next_ready_ = 0;
  }
  return count;
}

MessageBuffer UcxContext::take_buffer() {
  if (free_buffers_.empty()) return std::make_unique_for_overwrite<std::byte[]>(kMaxMessageBytes);
  MessageBuffer buffer = std::move(free_buffers_.back());
  free_buffers_.pop_back();
  return buffer;
}

void UcxContext::recycle(MessageBuffer buffer) {
  if (free_buffers_.size() < kSpareBuffers) free_buffers_.push_back(std::move(buffer));
}

bool UcxContext::arm() {
  armed_ = true;
  if (next_ready_ < ready_.size() || !failing_.empty() || !ending_.empty() || !to_confirm_alive_.empty()) return false;
  return side_channels_->arm() && ucp_worker_arm(worker_.get()) == UCS_OK;
}

}  // namespace gradrail::transport::ucx
