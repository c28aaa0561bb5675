#include "transport/shm/ring.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/check.h"

namespace gradrail::transport::shm {

RingProducer::Room RingProducer::look_again(size_t entries) {
  GRADRAIL_CHECK(known_head_ <= tail_ && entries <= kRingEntries);
  // Pairs with release(): the consumer has finished with the entries that are written next.
  const uint64_t head = ring_->head.load(std::memory_order_acquire);
  // A head that decreases, or exceeds the published entries, would let the producer overwrite unread entries.
  if (head < known_head_ || head > tail_) return Room::broken;
  known_head_ = head;
  return tail_ + entries - known_head_ <= kRingEntries ? Room::available : Room::full;
}

void RingProducer::publish(EntryKind kind, size_t bytes) {
  RingEntry& first = entry(tail_);
  // Relaxed, because the store of the sequence below publishes header and body.
  first.header.store(static_cast<uint64_t>(kind) | (static_cast<uint64_t>(bytes) << 32), std::memory_order_relaxed);
  // The order is sequentially consistent together with consumer_sleeps(), against announce_sleep() and
  // empty_after_announcing(): one of the two sides must read the other's store, otherwise a wake-up is lost.
  first.sequence.store(tail_ + 1, std::memory_order_seq_cst);
}

void RingProducer::publish_immediate(uint64_t immediate) {
  assert(tail_ + 1 - known_head_ <= kRingEntries);
  std::memcpy(entry(tail_).body, &immediate, sizeof(immediate));
  publish(EntryKind::immediate, 0);
  tail_ += 1;
}

void RingProducer::publish_message(absl::Span<const std::byte> message) {
  assert(message.size() <= kMaxMessageBytes && tail_ + entries_for(message.size()) - known_head_ <= kRingEntries);
  uint64_t position = tail_;
  for (size_t done = 0; done < message.size(); done += kEntryBodyBytes) {
    const size_t piece = std::min(kEntryBodyBytes, message.size() - done);
    std::memcpy(entry(position++).body, message.data() + done, piece);
  }
  publish(EntryKind::message, message.size());
  tail_ += entries_for(message.size());
}

RingConsumer::Taken RingConsumer::take(absl::Span<std::byte> message) {
  assert(message.size() >= kMaxMessageBytes);  // otherwise a valid message would count as broken
  const uint64_t sequence = next_sequence(std::memory_order_acquire);
  if (sequence < head_ + 1) return {};
  // An entry can only hold the number of this lap or of an earlier one.
  if (sequence > head_ + 1) return {.kind = Taken::Kind::broken};
  // The value is loaded once: a hostile producer could change it between two loads, after the check.
  const uint64_t header = entry(head_).header.load(std::memory_order_relaxed);
  switch (static_cast<EntryKind>(header & 0xff)) {
    case EntryKind::immediate: {
      Taken taken{.kind = Taken::Kind::immediate};
      std::memcpy(&taken.immediate, entry(head_).body, sizeof(taken.immediate));
      release(1);
      return taken;
    }
    case EntryKind::message: {
      const size_t bytes = header >> 32;
      if (bytes > kMaxMessageBytes || bytes > message.size()) return {.kind = Taken::Kind::broken};
      copy_message(message.first(bytes));
      release(entries_for(bytes));
      return {.kind = Taken::Kind::message, .message_bytes = bytes};
    }
  }
  return {.kind = Taken::Kind::broken};
}

void RingConsumer::copy_message(absl::Span<std::byte> message) const {
  uint64_t position = head_;
  for (size_t done = 0; done < message.size(); done += kEntryBodyBytes) {
    const size_t piece = std::min(kEntryBodyBytes, message.size() - done);
    std::memcpy(message.data() + done, entry(position++).body, piece);
  }
}

void RingConsumer::release(size_t entries) {
  head_ += entries;
  // The copies out of the entries are complete before the entries are free for the producer.
  ring_->head.store(head_, std::memory_order_release);
}

}  // namespace gradrail::transport::shm
