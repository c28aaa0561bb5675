// Posts of operations, and the handling of the completion queue.
#include <rdma/fi_errno.h>

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/common/slice.h"
#include "transport/ofi/connection.h"
#include "transport/ofi/context.h"
#include "transport/ofi/native_error.h"

namespace gradrail::transport::ofi {
namespace {

constexpr size_t kEntriesPerRead = 16;
std::string_view doing(const Operation* operation) {
  if (operation == nullptr) return "receive";
  switch (operation->kind) {
    case Operation::Kind::put:
      return "put";
    case Operation::Kind::get:
      return "get";
    case Operation::Kind::send:
      return "send message";
    case Operation::Kind::receive:
      return "receive message";
  }
  return "?";
}

}  // namespace

// Posts.

absl::Status OfiConnection::lost_error() const {
  return absl::UnavailableError(fmt::format("{}: the peer is lost", name_));
}

absl::Status OfiConnection::put(LocalSlice source, RemoteSlice target, PutOptions options) {
  if (lost()) return lost_error();
  GRADRAIL_RETURN_IF_ERROR(transfers_.check_put_room());
  GRADRAIL_RETURN_IF_ERROR(common::check_local("ofi", source));
  GRADRAIL_ASSIGN_OR_RETURN(const Import* const import, imports_.find(target, source.bytes, Access::remote_write));
  // The hello of the peer contains its address and mailbox.
  if (state_ != State::open) return absl::ResourceExhaustedError("ofi: the peer has not greeted yet, poll first");
  if (source.bytes == 0 && !options.immediate) {
    if (options.tag != 0) report_done(Completion::Kind::put_done, options.tag);
    return absl::OkStatus();
  }
  GRADRAIL_RETURN_IF_ERROR(transfers_.put(*link_, source, import, target.offset, options));
  return pump_or_lose();
}

absl::Status OfiConnection::get(LocalSlice target, RemoteSlice source, uint64_t tag) {
  if (lost()) return lost_error();
  GRADRAIL_RETURN_IF_ERROR(transfers_.check_get_room());
  GRADRAIL_RETURN_IF_ERROR(common::check_local("ofi", target));
  GRADRAIL_ASSIGN_OR_RETURN(const Import* const import, imports_.find(source, target.bytes, Access::remote_read));
  if (target.bytes == 0) {
    report_done(Completion::Kind::get_done, tag);
    return absl::OkStatus();
  }
  // A granted import implies the hello, so the link can be used.
  GRADRAIL_CHECK(state_ == State::open);
  GRADRAIL_RETURN_IF_ERROR(transfers_.get(*link_, target, *import, source.offset, tag));
  return pump_or_lose();
}

absl::Status OfiConnection::send(absl::Span<const std::byte> message) {
  if (message.size() > kMaxMessageBytes) {
    return absl::InvalidArgumentError(
        fmt::format("ofi: message of {} bytes, more than {}", message.size(), kMaxMessageBytes));
  }
  if (lost()) return lost_error();
  GRADRAIL_CHECK(link_ != nullptr);  // invariant 1: the owner has no pending connection
  GRADRAIL_RETURN_IF_ERROR(link_->messages().send(message));
  return pump_or_lose();
}

absl::StatusOr<std::byte*> OfiConnection::map(RemoteRegion) {
  return absl::UnimplementedError("ofi: a peer's memory cannot be mapped");
}

absl::Status OfiConnection::pump() {
  // Endpoints that connect are opened later: posts stay in the queues until then.
  if (state_ != State::open || !link_->connected()) return absl::OkStatus();
  // First, because a control message must not wait behind bulk data.
  GRADRAIL_RETURN_IF_ERROR(link_->messages().pump(link_->endpoint()));
  return transfers_.pump(link_->endpoint());
}

absl::Status OfiConnection::pump_or_lose() {
  absl::Status status = pump();
  if (!status.ok()) lose(status);
  return status;
}

bool OfiConnection::stuck() const { return state_ == State::open && (link_->messages().stuck() || transfers_.stuck()); }

void OfiConnection::report_done(Completion::Kind kind, uint64_t tag) {
  context_.report({.kind = kind, .connection = this, .tag = tag});
}

// Completions.

void OfiConnection::progress() {
  if (link_ == nullptr) return;
  // Arrivals are reported immediately: another poll that finds nothing may cost as much; over tcp it costs system
  // calls.
  while (!lost() && context_.room() > 0 && read_queue() && !context_.has_ready()) {
  }
  if (!lost() && state_ == State::open && !link_->connected()) progress_connecting();
  // The completions above have freed pieces and buffers, so more can be posted.
  if (!lost()) pump_or_lose().IgnoreError();
}

void OfiConnection::check_silence(TimePoint now) {
  const bool waits = !lost() && awaits_acknowledgement();
  switch (watch_.check(now, waits, transfers_.finished_count(), [this] { return transfers_.posted_bytes(); })) {
    case common::PathWatch::Verdict::fine:
      return;
    case common::PathWatch::Verdict::probe:
      // A side channel that is full takes the probe later.
      if (side_channel_.send(encode(Probe{watch_.next_probe()})).ok()) watch_.probed(now);
      return;
    case common::PathWatch::Verdict::lost:
      lose(absl::UnavailableError(
          fmt::format("{}: no acknowledgement for {:.1f} s: the device's path is lost, but the peer still runs", name_,
                      std::chrono::duration<double>(watch_.silence(now)).count())));
  }
}

void OfiConnection::progress_connecting() {
  absl::Status status = link_->progress_connecting();
  if (!status.ok()) return lose(std::move(status));
  if (link_->connected()) context_.unwatch(link_->endpoint().event_fd());  // the side channel reports the end
}

bool OfiConnection::read_queue() {
  GRADRAIL_CHECK(link_ != nullptr && !lost());
  std::array<fi_cq_data_entry, kEntriesPerRead> entries;
  const ssize_t got = fi_cq_read(link_->endpoint().queue(), entries.data(), entries.size());
  if (got == -FI_EAGAIN) return false;
  absl::Status status;
  // The failed entry blocks the queue until fi_cq_readerr() has taken it (fi_cq(3)).
  if (got == -FI_EAVAIL) {
    status = failure();
  } else if (got < 0) {
    status = native_error("read completions", static_cast<int>(-got));
  }
  for (ssize_t i = 0; i < got && status.ok(); ++i) status = handle(entries[static_cast<size_t>(i)]);
  if (!status.ok()) lose(std::move(status));
  return !lost();
}

absl::Status OfiConnection::handle(const fi_cq_data_entry& entry) {
  if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
    context_.report({.kind = Completion::Kind::put_arrived, .connection = this, .immediate = entry.data});
    if (context_.provider().notices_take_receives && entry.op_context != nullptr) {
      link_->messages().taken(*static_cast<const Operation*>(entry.op_context));
    }
    return absl::OkStatus();
  }
  if (entry.op_context == nullptr) return absl::OkStatus();
  const auto& operation = *static_cast<const Operation*>(entry.op_context);
  switch (operation.kind) {
    case Operation::Kind::put:
      // Nothing is due for a put without a tag, nor for a piece that is not the last.
      if (const auto tag = transfers_.put_finished(operation); tag.value_or(0) != 0) {
        report_done(Completion::Kind::put_done, *tag);
      }
      return absl::OkStatus();
    case Operation::Kind::get:
      if (const auto tag = transfers_.get_finished(operation)) report_done(Completion::Kind::get_done, *tag);
      return absl::OkStatus();
    case Operation::Kind::send:
      link_->messages().sent(operation);
      return absl::OkStatus();
    case Operation::Kind::receive:
      return handle_received(operation, entry.len);
  }
  return absl::OkStatus();
}

absl::Status OfiConnection::handle_received(const Operation& operation, size_t bytes) {
  GRADRAIL_ASSIGN_OR_RETURN(const auto body, link_->messages().received(operation, bytes));
  if (!body) return absl::OkStatus();
  context_.report({.kind = Completion::Kind::message, .connection = this, .message = *body},
                  {.connection = this, .slot = operation.slot});
  return absl::OkStatus();
}

absl::Status OfiConnection::failure() {
  const Endpoint::Failure failure = link_->endpoint().read_failure();
  if (failure.error == 0 || failure.error == FI_ECANCELED) return absl::OkStatus();
  return native_error(fmt::format("{} ({})", name_, doing(failure.operation)), failure.error, failure.detail);
}

void OfiConnection::release_message(uint32_t slot) {
  // A lost connection has no link any more, and posts no receives.
  if (!lost()) link_->messages().release(slot);
}

}  // namespace gradrail::transport::ofi
