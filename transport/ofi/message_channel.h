#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "transport/ofi/endpoint.h"

namespace gradrail::transport::ofi {

/// Control messages carry region keys and short reports; as with tcp.
inline constexpr size_t kMaxMessageBytes = 4096;
/// Messages of one connection that the receiver has room for, 4 KiB each.
inline constexpr uint32_t kReceives = 32;

/// The small messages of one connection. The receiver's posted buffers are the sender's credit: an endpoint has a
/// buffer for each message.
///
/// Every message begins with a header, little endian: credits u16 | kind u16 | length u32 | token u64.
class MessageChannel {
 public:
  MessageChannel();

  /// The memory to be registered before start().
  MemorySpan slab() const { return {slab_.get(), kSlabBytes}; }
  uint64_t token() const { return token_; }

  /// Posts all receives.
  absl::Status start(const Endpoint& endpoint, void* descriptor);
  /// Sets values of the peer's hello: its credits, and the token that it requires in every message.
  void set_peer(uint32_t credits, uint64_t token);

  /// Copies the message; pump() sends it. RESOURCE_EXHAUSTED: poll, then try again.
  absl::Status send(absl::Span<const std::byte> message);
  absl::Status pump(const Endpoint& endpoint);
  /// Sends nothing but a header: libfabric connects at the first message.
  void send_probe() { probe_wanted_ = true; }
  /// Whether all messages have left.
  bool idle() const { return !probe_wanted_ && free_sends_.size() + free_credit_sends_.size() == sends_.size(); }
  /// Whether pump() could not finish, and no transfer is in flight that would wake it up.
  bool stuck() const { return blocked_; }

  void sent(const Operation& operation);
  /// The message in a buffer, until release(slot); nothing for a message of credits only.
  /// Errors  DATA_LOSS: no message of this peer.
  absl::StatusOr<std::optional<absl::Span<const std::byte>>> received(const Operation& operation, size_t bytes);
  /// Releases a message that the owner has read: its buffer can receive again.
  void release(uint32_t slot) { repost_later({slot, true}); }
  /// A notice took the buffer, as it does where FI_RX_CQ_DATA is.
  void taken(const Operation& operation) { repost_later({operation.slot, false}); }

 private:
  struct Emptied {
    uint32_t slot = 0;
    bool is_credit = false;  ///< held a message, for which the sender has paid
  };
  enum class Kind : uint16_t { message = 1, credits = 2 };
  static constexpr size_t kHeaderBytes = 16;
  static constexpr size_t kSlotBytes = kHeaderBytes + kMaxMessageBytes;
  /// Messages of credits take no credit: two may be under way, one for each half of the receives.
  static constexpr uint32_t kCreditSlots = 4;
  /// Notices take buffers too with some providers; the network holds them back when there are none.
  static constexpr uint32_t kNoticeSlots = 92;
  static constexpr uint32_t kReceiveSlots = kReceives + kCreditSlots + kNoticeSlots;
  static constexpr uint32_t kSendSlots = 2 * kReceives;
  static constexpr size_t kSlabBytes = (kReceiveSlots + kSendSlots + kCreditSlots) * kSlotBytes;

  void repost_later(Emptied emptied) {
    GRADRAIL_CHECK(emptied.slot < kReceiveSlots && to_repost_.size() < kReceiveSlots);  // each buffer once
    to_repost_.push_back(emptied);
  }
  std::byte* receive_slot(uint32_t slot) const { return slab_.get() + slot * kSlotBytes; }
  std::byte* send_slot(uint32_t slot) const { return receive_slot(kReceiveSlots + slot); }
  void write_header(uint32_t slot, Kind kind, uint32_t bytes);
  absl::StatusOr<bool> post_send(const Endpoint& endpoint, uint32_t slot, Kind kind);
  absl::Status repost(const Endpoint& endpoint);
  absl::Status send_queued(const Endpoint& endpoint);
  absl::Status return_credits(const Endpoint& endpoint);

  const uint64_t token_;  ///< an unknown sender that finds the endpoint cannot send as the peer
  const std::unique_ptr<std::byte[]> slab_;
  void* descriptor_ = nullptr;
  uint64_t peer_token_ = 0;
  uint32_t credits_ = 0;   ///< messages that the peer has room for
  uint32_t consumed_ = 0;  ///< messages with buffers that are posted again, not yet reported to the peer
  bool blocked_ = false;
  bool probe_wanted_ = false;  ///< a message of credits must be sent even if there are none
  std::vector<Operation> receives_;
  std::vector<Operation> sends_;  ///< the last kCreditSlots are for messages of credits
  std::vector<uint32_t> lengths_;
  std::vector<uint32_t> free_sends_;
  std::vector<uint32_t> free_credit_sends_;
  std::array<uint32_t, kSendSlots> queued_{};  ///< a ring of slots to be sent, never more than there are
  uint64_t first_queued_ = 0;
  uint64_t end_queued_ = 0;
  std::vector<Emptied> to_repost_;
};

}  // namespace gradrail::transport::ofi
