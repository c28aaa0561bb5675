#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/check.h"

/// One direction of a connection: a single-producer, single-consumer ring in memory shared by two processes.
///
///   line 0        head      u64  number of consumed entries                   written by the consumer
///   line 1        sleeping  u32  the consumer is about to block: ring its bell  written by the consumer
///   lines 2…      entries   kRingEntries lines of                             written by the producer
///                   0  sequence u64   n + 1 once entry n is published
///                   8  header   u64   kind in bits 0–7, message length in bits 32–63
///                  16  body      48   immediate u64, or the message's next 48 bytes
///
/// A message longer than one body continues in the bodies of the following entries, across the end of the array if
/// necessary. Only its first entry gets a sequence number, written last: a producer that fails half-way publishes
/// nothing.
///
/// The sequence number is in the entry. A consumer therefore touches one cache line per entry, and the producer reads
/// `head` only when the ring seems full. There is no lock: a killed peer leaves nothing locked.
///
/// Either side may be hostile. Positions are kept in private memory; each value from the ring is read once and checked.
namespace gradrail::transport::shm {

/// 128 KiB per direction: stays in a level 2 cache, and holds a notice for every 1 MiB bucket of 2 GiB.
inline constexpr size_t kRingEntries = 2048;
/// Size of one page: puts are for larger data.
inline constexpr size_t kMaxMessageBytes = 4096;
inline constexpr size_t kEntryBodyBytes = 48;

struct alignas(64) RingEntry {
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> header;
  std::byte body[kEntryBodyBytes];
};

struct Ring {
  alignas(64) std::atomic<uint64_t> head;
  alignas(64) std::atomic<uint32_t> sleeping;
  RingEntry entries[kRingEntries];
};

static_assert(sizeof(RingEntry) == 64 && sizeof(Ring) == 64 * (2 + kRingEntries), "both processes see this layout");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "an emulated atomic does not work across processes");
static_assert((kRingEntries & (kRingEntries - 1)) == 0, "positions are masked");

/// The memory behind a connection, one file: the connecting side produces into `from_connector`.
struct RingPair {
  Ring from_connector;
  Ring from_acceptor;
};

enum class EntryKind : uint8_t { immediate = 1, message = 2 };

constexpr size_t entries_for(size_t message_bytes) {
  return message_bytes == 0 ? 1 : (message_bytes + kEntryBodyBytes - 1) / kEntryBodyBytes;
}

inline void check_ring(const Ring* ring) {
  // An atomic that crosses a cache line is not atomic for the other process.
  GRADRAIL_CHECK(ring != nullptr && reinterpret_cast<uintptr_t>(ring) % alignof(Ring) == 0);
}

/// Threads  One.
class RingProducer {
 public:
  enum class Room { available, full, broken };

  explicit RingProducer(Ring* ring) : ring_(ring) { check_ring(ring); }

  /// Whether `entries` more fit. broken: the consumer claims to have consumed what was never published.
  Room room_for(size_t entries) {
    if (tail_ + entries - known_head_ <= kRingEntries) [[likely]] {
      return Room::available;
    }
    return look_again(entries);
  }

  /// Publishes an entry. Both functions need room_for() to have answered available. The entry is visible when they
  /// return.
  void publish_immediate(uint64_t immediate);
  void publish_message(absl::Span<const std::byte> message);

  /// Exact after a publish: either the consumer finds the entry before it blocks, or this is true.
  bool consumer_sleeps() const { return ring_->sleeping.load(std::memory_order_seq_cst) != 0; }

 private:
  RingEntry& entry(uint64_t position) { return ring_->entries[position & (kRingEntries - 1)]; }
  Room look_again(size_t entries);
  void publish(EntryKind kind, size_t bytes);

  Ring* ring_;
  uint64_t tail_ = 0;        ///< entries published
  uint64_t known_head_ = 0;  ///< the head at the last look; never ahead of tail_
};

/// Threads  One.
class RingConsumer {
 public:
  struct Taken {
    enum class Kind { nothing, immediate, message, broken };
    Kind kind = Kind::nothing;
    uint64_t immediate = 0;
    size_t message_bytes = 0;
  };

  explicit RingConsumer(Ring* ring) : ring_(ring) { check_ring(ring); }

  /// Takes the next entry; a message is copied into `message`, which holds kMaxMessageBytes. broken: the producer wrote
  /// an entry that cannot be, and nothing more should be taken.
  Taken take(absl::Span<std::byte> message);

  bool empty() const { return next_sequence(std::memory_order_acquire) < head_ + 1; }

  /// Requests a ring from the producer. The caller checks empty() afterwards: earlier entries cause no ring.
  void announce_sleep() { ring_->sleeping.store(1, std::memory_order_seq_cst); }
  void announce_awake() { ring_->sleeping.store(0, std::memory_order_relaxed); }
  /// empty(), ordered after announce_sleep().
  bool empty_after_announcing() const { return next_sequence(std::memory_order_seq_cst) < head_ + 1; }

 private:
  const RingEntry& entry(uint64_t position) const { return ring_->entries[position & (kRingEntries - 1)]; }
  uint64_t next_sequence(std::memory_order order) const { return entry(head_).sequence.load(order); }
  void copy_message(absl::Span<std::byte> message) const;
  void release(size_t entries);

  Ring* ring_;
  uint64_t head_ = 0;  ///< entries consumed
};

}  // namespace gradrail::transport::shm
