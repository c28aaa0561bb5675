// Posting, and what the completion queue says.
#include <rdma/fi_errno.h>

#include <array>
#include <cstddef>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "transport/common/slice.h"
#include "transport/ofi/connection.h"
#include "transport/ofi/context.h"
#include "transport/ofi/native_error.h"

namespace gradrail::transport::ofi {
namespace {

constexpr size_t kEntriesPerRead = 16;
/// A device acknowledges within milliseconds, on a busy emulated host within some hundred; bulk takes its time besides.
constexpr Duration kSilence = std::chrono::seconds(3);
constexpr double kSlowestDevice = 4e6;  // bytes a second

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

absl::Status OfiConnection::check_post(const TransferQueue& queue) const {
  if (lost()) return absl::UnavailableError(fmt::format("{}: the peer is lost", name_));
  constexpr size_t kMost = 2;  // a put and its notice
  if (queue.room() < kMost) return absl::ResourceExhaustedError("ofi: queue full, poll first");
  return absl::OkStatus();
}

absl::StatusOr<const OfiConnection::Import*> OfiConnection::remote(RemoteSlice slice, uint64_t bytes,
                                                                   Access wanted) const {
  if (slice.region == RemoteRegion{} && bytes == 0 && slice.offset == 0 && wanted == Access::remote_write) {
    return nullptr;
  }
  const Import* const import = imports_.find(slice.region);
  if (import == nullptr) return absl::InvalidArgumentError("ofi: not an imported region");
  if (!allows(import->key.access, wanted)) {
    return absl::InvalidArgumentError(wanted == Access::remote_write ? "ofi: put to a region not remotely writable"
                                                                     : "ofi: get from a region not remotely readable");
  }
  if (absl::Status status = common::check_remote("ofi", slice, bytes, import->key.bytes); !status.ok()) return status;
  if (!import->granted) return absl::ResourceExhaustedError("ofi: the peer has not opened its region yet, poll first");
  return import;
}

absl::StatusOr<Transfer> OfiConnection::local_part(const LocalSlice& slice) const {
  Transfer transfer{.bytes = slice.bytes};
  if (slice.bytes == 0) return transfer;
  const auto* region = static_cast<const Region*>(slice.region);
  const absl::StatusOr<void*> descriptor = region->descriptor_in(link_->domain());
  if (!descriptor.ok()) return descriptor.status();
  transfer.local = common::address_of(slice);
  transfer.descriptor = *descriptor;
  return transfer;
}

absl::Status OfiConnection::put(LocalSlice source, RemoteSlice target, PutOptions options) {
  if (absl::Status status = check_post(puts_); !status.ok()) return status;
  if (absl::Status status = common::check_local("ofi", source); !status.ok()) return status;
  const absl::StatusOr<const Import*> import = remote(target, source.bytes, Access::remote_write);
  if (!import.ok()) return import.status();
  if (state_ != State::open) return absl::ResourceExhaustedError("ofi: the peer has not greeted yet, poll first");
  if (source.bytes == 0 && !options.immediate) {
    if (options.tag != 0) report_done(Completion::Kind::put_done, options.tag);
    return absl::OkStatus();
  }
  if (source.bytes == 0) {
    puts_.push(notice(*options.immediate, options.tag));
    return pump_or_lose();
  }
  absl::StatusOr<Transfer> transfer = local_part(source);
  if (!transfer.ok()) return transfer.status();
  transfer->remote = (*import)->base + target.offset;
  transfer->key = (*import)->device_key;
  transfer->tag = options.tag;
  const bool separate = options.immediate && context_.provider().separate_notices;
  if (!separate) transfer->immediate = options.immediate;
  puts_.push(*transfer);
  if (separate) puts_.push(notice(*options.immediate, 0));
  return pump_or_lose();
}

Transfer OfiConnection::notice(uint64_t immediate, uint64_t tag) const {
  // Providers differ on whether a write of no bytes needs a key: with the mailbox's it is right for all.
  return {.local = link_->mailbox(),
          .descriptor = link_->mailbox_memory().descriptor,
          .remote = mailbox_base_,
          .key = mailbox_key_,
          .immediate = immediate,
          .tag = tag};
}

absl::Status OfiConnection::get(LocalSlice target, RemoteSlice source, uint64_t tag) {
  if (absl::Status status = check_post(gets_); !status.ok()) return status;
  if (absl::Status status = common::check_local("ofi", target); !status.ok()) return status;
  const absl::StatusOr<const Import*> import = remote(source, target.bytes, Access::remote_read);
  if (!import.ok()) return import.status();
  if (target.bytes == 0) {
    report_done(Completion::Kind::get_done, tag);
    return absl::OkStatus();
  }
  absl::StatusOr<Transfer> transfer = local_part(target);
  if (!transfer.ok()) return transfer.status();
  transfer->remote = (*import)->base + source.offset;
  transfer->key = (*import)->device_key;
  transfer->tag = tag;
  gets_.push(*transfer);
  return pump_or_lose();
}

absl::Status OfiConnection::send(absl::Span<const std::byte> message) {
  if (message.size() > kMaxMessageBytes) {
    return absl::InvalidArgumentError(
        fmt::format("ofi: message of {} bytes, more than {}", message.size(), kMaxMessageBytes));
  }
  if (lost()) return absl::UnavailableError(fmt::format("{}: the peer is lost", name_));
  if (absl::Status status = link_->messages().send(message); !status.ok()) return status;
  return pump_or_lose();
}

absl::StatusOr<std::byte*> OfiConnection::map(RemoteRegion) {
  return absl::UnimplementedError("ofi: a peer's memory cannot be mapped");
}

absl::Status OfiConnection::pump() {
  if (state_ != State::open || !link_->connected()) return absl::OkStatus();
  if (absl::Status status = link_->messages().pump(link_->endpoint()); !status.ok()) return status;
  if (absl::Status status = puts_.pump(link_->endpoint()); !status.ok()) return status;
  return gets_.pump(link_->endpoint());
}

absl::Status OfiConnection::pump_or_lose() {
  absl::Status status = pump();
  if (!status.ok()) lose(status);
  return status;
}

bool OfiConnection::stuck() const {
  return state_ == State::open && (link_->messages().stuck() || puts_.stuck() || gets_.stuck());
}

void OfiConnection::report_done(Completion::Kind kind, uint64_t tag) {
  Completion done;
  done.kind = kind;
  done.connection = this;
  done.tag = tag;
  context_.report(std::move(done));
}

// Completions.

void OfiConnection::progress() {
  if (link_ == nullptr) return;
  // Arrivals are reported at once: another poll that finds nothing may cost as much; over tcp it costs system calls.
  while (!lost() && context_.room() > 0 && read_queue() && !context_.has_ready()) {
  }
  if (!lost() && state_ == State::open && !link_->connected()) progress_connecting();
  if (!lost()) pump_or_lose().IgnoreError();
}

void OfiConnection::check_silence(TimePoint now) {
  const uint64_t finished = puts_.finished_count() + gets_.finished_count();
  if (lost() || !awaits_acknowledgement() || std::exchange(finished_before_, finished) != finished) {
    silent_since_ = now;
    return;
  }
  const Duration silence = now - silent_since_;
  if (silence < kSilence) return;
  const double at_slowest = static_cast<double>(puts_.bytes_under_way() + gets_.bytes_under_way()) / kSlowestDevice;
  if (silence < kSilence + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(at_slowest))) return;
  lose(absl::UnavailableError(
      fmt::format("{}: nothing was acknowledged for {:.1f} s: the device's path is lost, but the peer still runs",
                  name_, std::chrono::duration<double>(silence).count())));
}

void OfiConnection::progress_connecting() {
  absl::Status status = link_->progress_connecting();
  if (!status.ok()) return lose(std::move(status));
  if (link_->connected()) context_.unwatch(link_->endpoint().event_fd());  // the side channel reports the end
}

bool OfiConnection::read_queue() {
  std::array<fi_cq_data_entry, kEntriesPerRead> entries;
  const ssize_t got = fi_cq_read(link_->endpoint().queue(), entries.data(), entries.size());
  if (got == -FI_EAGAIN) return false;
  absl::Status status;
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
    Completion arrived;
    arrived.kind = Completion::Kind::put_arrived;
    arrived.connection = this;
    arrived.immediate = entry.data;
    context_.report(std::move(arrived));
    if (context_.provider().notices_take_receives && entry.op_context != nullptr) {
      link_->messages().taken(*static_cast<const Operation*>(entry.op_context));
    }
    return absl::OkStatus();
  }
  if (entry.op_context == nullptr) return absl::OkStatus();
  const auto& operation = *static_cast<const Operation*>(entry.op_context);
  switch (operation.kind) {
    case Operation::Kind::put:
      if (const auto tag = puts_.finished(operation); tag.value_or(0) != 0) {
        report_done(Completion::Kind::put_done, *tag);
      }
      return absl::OkStatus();
    case Operation::Kind::get:
      if (const auto tag = gets_.finished(operation)) report_done(Completion::Kind::get_done, *tag);
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
  const auto body = link_->messages().received(operation, bytes);
  if (!body.ok()) return body.status();
  if (!*body) return absl::OkStatus();
  Completion message;
  message.kind = Completion::Kind::message;
  message.connection = this;
  message.message = **body;
  context_.report(std::move(message), operation.slot);
  return absl::OkStatus();
}

absl::Status OfiConnection::failure() {
  const Endpoint::Failure failure = link_->endpoint().read_failure();
  if (failure.error == 0 || failure.error == FI_ECANCELED) return absl::OkStatus();
  return native_error(fmt::format("{} ({})", name_, doing(failure.operation)), failure.error, failure.detail);
}

void OfiConnection::release_message(uint32_t slot) {
  if (!lost()) link_->messages().release(slot);
}

}  // namespace gradrail::transport::ofi
