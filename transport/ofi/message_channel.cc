#include "transport/ofi/message_channel.h"

#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/little_endian.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/ofi/native_error.h"

namespace gradrail::transport::ofi {

MessageChannel::MessageChannel()
    : token_(random_bits()),
      slab_(std::make_unique<std::byte[]>(kSlabBytes)),
      receives_(kReceiveSlots),
      sends_(kSendSlots + kCreditSlots),
      lengths_(kSendSlots + kCreditSlots) {
  for (uint32_t slot = 0; slot < kReceiveSlots; ++slot) {
    receives_[slot].kind = Operation::Kind::receive;
    receives_[slot].slot = slot;
    // No credit: the hello grants the first ones.
    to_repost_.push_back({slot, false});
  }
  for (uint32_t slot = 0; slot < kSendSlots + kCreditSlots; ++slot) {
    sends_[slot].kind = Operation::Kind::send;
    sends_[slot].slot = slot;
    (slot < kSendSlots ? free_sends_ : free_credit_sends_).push_back(slot);
  }
}

absl::Status MessageChannel::start(const Endpoint& endpoint, void* descriptor) {
  GRADRAIL_CHECK(to_repost_.size() == kReceiveSlots);  // no receive is posted yet
  descriptor_ = descriptor;
  // A buffer is posted before its credit is returned, because a credit promises a posted buffer.
  GRADRAIL_RETURN_IF_ERROR(repost(endpoint));
  // The hello promises the peer all of these buffers.
  if (!to_repost_.empty()) return native_error("post receives", FI_EAGAIN);
  return absl::OkStatus();
}

void MessageChannel::set_peer(uint32_t credits, uint64_t token) {
  // The number is the peer's: received() treats more than kReceives credits as damage.
  credits_ = std::min(credits, kReceives);
  peer_token_ = token;
}

absl::Status MessageChannel::send(absl::Span<const std::byte> message) {
  if (free_sends_.empty()) return absl::ResourceExhaustedError("ofi: too many messages in flight, poll first");
  // The queue holds slots that are not free, so it is not full.
  GRADRAIL_CHECK(message.size() <= kMaxMessageBytes && end_queued_ - first_queued_ < kSendSlots);
  const uint32_t slot = free_sends_.back();
  free_sends_.pop_back();
  if (!message.empty()) std::memcpy(send_slot(slot) + kHeaderBytes, message.data(), message.size());
  lengths_[slot] = static_cast<uint32_t>(message.size());
  queued_[end_queued_++ % kSendSlots] = slot;
  return absl::OkStatus();
}

absl::Status MessageChannel::pump(const Endpoint& endpoint) {
  blocked_ = false;
  GRADRAIL_RETURN_IF_ERROR(repost(endpoint));
  GRADRAIL_RETURN_IF_ERROR(send_queued(endpoint));
  return return_credits(endpoint);
}

absl::Status MessageChannel::repost(const Endpoint& endpoint) {
  while (!to_repost_.empty()) {
    const auto [slot, is_credit] = to_repost_.back();
    const ssize_t result =
        fi_recv(endpoint.fid(), receive_slot(slot), kSlotBytes, descriptor_, FI_ADDR_UNSPEC, &receives_[slot].context);
    if (result == -FI_EAGAIN) {
      blocked_ = true;
      return absl::OkStatus();
    }
    if (result != 0) return native_error("post receive", static_cast<int>(-result));
    to_repost_.pop_back();
    if (is_credit) ++consumed_;
  }
  return absl::OkStatus();
}

absl::Status MessageChannel::send_queued(const Endpoint& endpoint) {
  while (first_queued_ < end_queued_ && credits_ > 0) {
    GRADRAIL_ASSIGN_OR_RETURN(const bool posted,
                              post_send(endpoint, queued_[first_queued_ % kSendSlots], Kind::message));
    if (!posted) return absl::OkStatus();
    ++first_queued_;
    --credits_;
  }
  return absl::OkStatus();
}

absl::Status MessageChannel::return_credits(const Endpoint& endpoint) {
  // Every message returns credits in its header. This one is for traffic in one direction, where the sender still has
  // half of its credits when it is sent.
  if ((consumed_ < kReceives / 2 && !probe_wanted_) || free_credit_sends_.empty()) return absl::OkStatus();
  const uint32_t slot = free_credit_sends_.back();
  lengths_[slot] = 0;
  GRADRAIL_ASSIGN_OR_RETURN(const bool posted, post_send(endpoint, slot, Kind::credits));
  if (posted) free_credit_sends_.pop_back();
  probe_wanted_ = probe_wanted_ && !posted;
  return absl::OkStatus();
}

void MessageChannel::write_header(uint32_t slot, Kind kind, uint32_t bytes) {
  std::byte* header = send_slot(slot);
  store_le(header, static_cast<uint16_t>(consumed_));
  store_le(header + 2, static_cast<uint16_t>(kind));
  store_le(header + 4, bytes);
  store_le(header + 8, peer_token_);
}

absl::StatusOr<bool> MessageChannel::post_send(const Endpoint& endpoint, uint32_t slot, Kind kind) {
  write_header(slot, kind, lengths_[slot]);
  const ssize_t result = fi_send(endpoint.fid(), send_slot(slot), kHeaderBytes + lengths_[slot], descriptor_,
                                 endpoint.peer(), &sends_[slot].context);
  if (result == -FI_EAGAIN) {
    blocked_ = true;
    return false;
  }
  if (result != 0) return native_error("post message", static_cast<int>(-result));
  // The header has carried these credits. A refused post keeps them, and the next header is written with the new count.
  consumed_ = 0;
  return true;
}

void MessageChannel::sent(const Operation& operation) {
  GRADRAIL_CHECK(operation.slot < sends_.size());
  std::vector<uint32_t>& free = operation.slot < kSendSlots ? free_sends_ : free_credit_sends_;
  GRADRAIL_CHECK(free.size() < (operation.slot < kSendSlots ? kSendSlots : kCreditSlots));
  free.push_back(operation.slot);
}

absl::StatusOr<std::optional<absl::Span<const std::byte>>> MessageChannel::received(const Operation& operation,
                                                                                    size_t bytes) {
  const std::byte* header = receive_slot(operation.slot);
  const absl::Status damaged = absl::DataLossError("ofi: a message that is not the peer's");
  if (bytes < kHeaderBytes || load_le<uint64_t>(header + 8) != token_) return damaged;
  const auto kind = static_cast<Kind>(load_le<uint16_t>(header + 2));
  const size_t length = load_le<uint32_t>(header + 4);
  const uint32_t credits = credits_ + load_le<uint16_t>(header);
  if (length != bytes - kHeaderBytes || credits > kReceives) return damaged;
  credits_ = credits;
  if (kind == Kind::message) return absl::Span<const std::byte>(header + kHeaderBytes, length);
  if (kind != Kind::credits || length != 0) return damaged;
  // The peer paid no credit for a message of credits, so its buffer returns none.
  repost_later({operation.slot, false});
  return std::nullopt;
}

}  // namespace gradrail::transport::ofi
